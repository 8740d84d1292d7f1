//! `cyberos audit accept-loss` (`[6.4]`): what root says when rows of the ledger are gone for good, so that the broker
//! starts again. It shows what is lost, asks, and becomes the store's owner before it touches anything: whoever owns that
//! folder may have put links there.

use super::store_owner::become_owner;
use super::{Context, output};
use crate::audit::accept::{Damage, Loss, NotAccepted, accept_loss, damage};
use crate::audit::recovery::LedgerError;
use crate::config::{Config, StartedBy};
use crate::exit::{Exit, OperatorError};
use clap::Args;
use cyberos_proto::invoker;
use nix::unistd::{Uid, User, geteuid};
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Go on without rows that are damaged or gone; what is left of them is kept aside, and a row says so (root only)
#[derive(Debug, Args)]
pub(super) struct AcceptLoss {
    /// The store (the folder that holds audit/ and HEAD) [default: that of the configuration's state]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Don't ask
    #[arg(long)]
    yes: bool,
}

impl AcceptLoss {
    pub(super) fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        if !geteuid().is_root() {
            return Err(OperatorError::new(
                Exit::NOT_PERMITTED,
                "only root may accept that rows of the audit ledger are gone: use sudo",
            ));
        }
        let store = match self.store {
            Some(store) => std::path::absolute(&store)
                .map_err(|e| OperatorError::new(Exit::FAILED, format!("{}: {e}", store.display())))?,
            None => {
                let config = Config::load(None, StartedBy::Service);
                config
                    .map_err(|e| {
                        OperatorError::new(Exit::USAGE, format!("{e}; or name the store with --store"))
                    })?
                    .state
                    .join("store")
            }
        };
        let by = by();
        let store = become_owner(&store).map_err(|e| OperatorError::new(Exit::FAILED, e))?;
        let failed = |e: LedgerError| OperatorError::new(Exit::FAILED, with_advice(&e, &store));
        let Some(damage) = damage(&store).map_err(failed)? else {
            if context.json {
                output::json(&json!({ "accepted": false, "store": store.display().to_string() }));
            } else {
                output::line!("the audit ledger in {} is whole: there is no loss to accept", shown(&store));
            }
            return Ok(Exit::OK);
        };
        if !context.json {
            tell(&store, &damage);
        }
        if !self.yes && !confirmed(context.json)? {
            return Err(OperatorError::new(Exit::FAILED, "nothing was accepted, and nothing was changed"));
        }
        let loss = accept_loss(&store, &damage, &by).map_err(|e| match e {
            NotAccepted::Ledger(e) => failed(e),
            changed @ NotAccepted::Changed { .. } => OperatorError::new(Exit::FAILED, changed.to_string()),
        })?;
        report(&loss, context.json);
        Ok(Exit::OK)
    }
}

/// Who says so, for the row.
fn by() -> String {
    let name = |uid: u32| {
        User::from_uid(Uid::from_raw(uid))
            .ok()
            .flatten()
            .map_or_else(|| format!("uid {uid}"), |user| user.name)
    };
    invoker::uid().map_or_else(|| "root".to_owned(), |uid| format!("root, by sudo of {}", name(uid)))
}

/// Something of root's in the store stops its owner, as it would stop the broker.
fn with_advice(e: &LedgerError, store: &Path) -> String {
    match e {
        LedgerError::Io { error, .. } if error.kind() == std::io::ErrorKind::PermissionDenied => {
            format!("{e}; all of the store must be its user's: chown -R cyberos: {}", shown(store))
        }
        _ => e.to_string(),
    }
}

fn shown(path: &Path) -> String {
    crate::terminal::escape_line(&path.display().to_string()).into_owned()
}

fn tell(store: &Path, damage: &Damage) {
    let Damage { fault, head, behind } = damage;
    output::line!("The audit ledger in {} is not whole:", shown(store));
    output::line!("  {}", crate::terminal::escape_line(&fault.to_string()));
    match fault.seq {
        1 => output::line!("  No row before that is left to keep."),
        2 => output::line!("  Row 1 stays."),
        seq => output::line!("  Rows 1 to {} stay.", seq - 1),
    }
    match head.filter(|head| *head >= fault.seq) {
        Some(head) => output::line!(
            "  Rows {} to {head} were on the disk (HEAD says so) and will count as lost.",
            fault.seq
        ),
        None => output::line!("  It is not known how many rows are lost behind that."),
    }
    output::line!(
        "  The {behind} bytes from there on are kept in {}/lost/ for whoever investigates.",
        shown(store)
    );
    output::line!(
        "  A row audit.loss_accepted will say so. If you have a backup of the store, use that instead."
    );
}

fn confirmed(json: bool) -> Result<bool, OperatorError> {
    if json || !std::io::stdin().is_terminal() {
        return Err(OperatorError::new(
            Exit::USAGE,
            "there is no terminal to ask on: say --yes to accept the loss",
        ));
    }
    Ok(output::asked("Type 'yes' to accept this loss: ")? == "yes")
}

fn report(loss: &Loss, json: bool) {
    let Loss { damage, kept_in, recorded } = loss;
    if json {
        output::json(&json!({
            "accepted": true, "from_seq": damage.fault.seq, "head": damage.head, "what": damage.fault.what,
            "bytes": damage.behind, "kept_in": kept_in.display().to_string(), "recorded": recorded,
        }));
    } else {
        output::line!("Accepted: row {recorded} records it, and {} holds what was damaged.", shown(kept_in));
        output::line!("The broker can be started now.");
    }
}
