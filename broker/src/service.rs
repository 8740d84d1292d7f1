//! The broker put together: its parts opened in order, and its running invocations. Made by the daemon's main, used by
//! `run`, `overview` and `control`.

use crate::approvals::{Approval, Approvals};
use crate::audit::{Audit, AuditOptions, Durability, LedgerOptions, OnFailure};
use crate::blocking_pool::BlockingPool;
use crate::call::Invocation;
use crate::capture::{Keep, Logs};
use crate::config::{self, Config};
use crate::disk_guard::DiskGuard;
use crate::exit::{Exit, OperatorError};
use crate::grants::{Grants, NeverGrantable, Operator};
use crate::helper::Helper;
use crate::invocation::Running;
use crate::memory::Store;
use crate::seal::{Caps, Sealer};
use crate::session::Serving;
use crate::skill::Skill;
use crate::skillfs_client::SkillfsClient;
use crate::tools::{self, Catalogue, Deps};
use anyhow::{Context, Result};
use cyberos_proto::ids::InvocationId;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Everything the daemon holds.
pub struct Broker {
    /// Configuration, resolved.
    pub config: Config,
    /// The root helper.
    pub helper: Helper,
    /// SkillFS's control socket.
    pub view: SkillfsClient,
    /// Sealed copies.
    pub sealer: Arc<Sealer>,
    /// The audit trail.
    pub audit: Audit,
    /// Consents.
    pub approvals: Approvals,
    /// Captured output.
    pub logs: Logs,
    catalogue: Arc<Catalogue>,
    never: Arc<NeverGrantable>,
    pool: BlockingPool,
    running: Mutex<HashMap<InvocationId, Arc<Running>>>,
}

impl Broker {
    /// Opens every part; the first that can't be opened ends the start with its name.
    pub fn open(config: Config, sealed: &Path) -> Result<Arc<Self>> {
        let state = config.state.clone();
        let audit = Audit::open(&state.join("store"), audit_options(&config))?;
        if let Some(cut) = &audit.recovery().cut {
            let (segment, offset, bytes) = (cut.segment.display(), cut.offset, cut.bytes);
            tracing::warn!(%segment, offset, bytes, fault = ?cut.fault, "the ledger's torn tail, never acknowledged as durable, was cut");
        }
        let store = Arc::new(Store::open(&state.join("tenants"))?);
        let helper = Helper::new(&config.helper_socket);
        let catalogue = Arc::new(
            tools::standard(Deps {
                audit: audit.clone(),
                store,
                tenant_quota: config.quota.tenant_store_mb << 20,
                helper: helper.clone(),
                require: config.require.clone(),
                space: DiskGuard::open(&state).context("the state directory")?,
            })
            .context("the tools")?,
        );
        let caps = Caps {
            max_bytes: config.seal.max_bytes,
            max_entries: usize::try_from(config.seal.max_entries).unwrap_or(usize::MAX),
            cache: config.seal.cache,
        };
        let space = DiskGuard::open(&state).context("the state directory")?;
        let sealer = Sealer::open(sealed, &config.mount, caps, &space).context("the sealed copies")?;
        let sealer = Arc::new(sealer);
        let approvals = Approvals::new(&state);
        let keep = Keep { runs: config.logs.keep, bytes: config.logs.max_mb << 20 };
        let logs = Logs::open(&state.join("logs"), keep).context("the captured output")?;
        let never = Arc::new(NeverGrantable::new(&config));
        Ok(Arc::new(Broker {
            helper,
            view: SkillfsClient::new(&config.skillfs_control),
            sealer,
            audit,
            approvals,
            logs,
            catalogue,
            never,
            pool: BlockingPool::default(),
            running: Mutex::default(),
            config,
        }))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<InvocationId, Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A running invocation.
    pub fn running(&self, id: &InvocationId) -> Option<Arc<Running>> {
        self.all().get(id).cloned()
    }

    /// Every running invocation.
    pub fn every(&self) -> Vec<Arc<Running>> {
        self.all().values().cloned().collect()
    }

    pub(crate) fn remember(&self, running: &Arc<Running>) {
        self.all().insert(running.invocation.id, Arc::clone(running));
    }

    pub(crate) fn forget(&self, id: InvocationId) {
        self.all().remove(&id);
    }

    /// The consent that there is for this skill, whatever it asks for now. One that cannot be trusted is an error, and
    /// no consent.
    pub fn approval(&self, skill: &Skill) -> Result<Option<Approval>, OperatorError> {
        self.approvals.read(&skill.id).map_err(|e| {
            OperatorError::new(Exit::FAILED, format!("the approval of {} is no good: {e}", skill.id))
        })
    }

    /// What this skill may do under this operator.
    pub fn grants(&self, skill: &Skill, approval: Option<&Approval>) -> Grants {
        let approved = approval.is_some_and(|a| a.covers(skill));
        let operator = Operator::new(&self.config.grants, &skill.id, approved);
        Grants::compile(skill, &operator, Arc::clone(&self.never))
    }

    /// The tools of these grants that this build has.
    pub fn granted_tools<'a>(&self, grants: &'a Grants) -> Vec<&'a str> {
        grants.tools().into_iter().filter(|t| self.catalogue.get(t).is_some()).collect()
    }

    /// What the skill asks for and does not get, a line each: by the grants, and because this build has no such tool.
    pub fn not_granted(&self, grants: &Grants) -> Vec<String> {
        let missing = grants.tools().into_iter().filter(|t| self.catalogue.get(t).is_none());
        let missing = missing.map(|t| format!("tool {t}: this version does not have it"));
        grants.not_granted().iter().cloned().chain(missing).collect()
    }

    /// What a session needs to answer calls.
    pub(crate) fn serving(
        &self,
        invocation: &Arc<Invocation>,
        grants: Grants,
        copy: Arc<OwnedFd>,
        deadline: Instant,
    ) -> Serving {
        Serving {
            invocation: Arc::clone(invocation),
            grants: Arc::new(grants),
            copy,
            catalogue: Arc::clone(&self.catalogue),
            audit: self.audit.clone(),
            pool: self.pool.clone(),
            deadline: deadline.into_std(),
            write_quota: self.config.quota.invocation_write_mb << 20,
        }
    }
}

fn audit_options(config: &Config) -> AuditOptions {
    let ledger = LedgerOptions {
        durability: match config.audit.durability {
            config::Durability::Normal => Durability::Background,
            config::Durability::Fsync => Durability::Fsync,
        },
        on_failure: match config.audit.on_failure {
            config::OnFailure::Queue => OnFailure::Queue,
            config::OnFailure::Refuse => OnFailure::Refuse,
            config::OnFailure::Continue => OnFailure::Continue,
        },
        queue: config.audit.queue_rows,
        ..LedgerOptions::default()
    };
    AuditOptions { ledger, hash_key: None, run_quota: config.quota.invocation_ledger_mb << 20 }
}
