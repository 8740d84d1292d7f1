//! `cyberos-broker`: the daemon. Reads its configuration, opens its parts, serves operators until SIGTERM, then ends
//! what runs and closes the ledger.

use anyhow::{Context, Result, bail};
use clap::Parser;
use cyberos_broker::config::{Config, GrantSet, StartedBy};
use cyberos_broker::service::Broker;
use cyberos_broker::terminal::{Events, escape_for_terminal};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long runs may take to end when the broker stops.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// The capability broker: runs skills as SkillFS shows them, decides and records every call
#[derive(Debug, Parser)]
#[command(name = "cyberos-broker", version)]
struct Options {
    /// The operator's configuration [default: /etc/cyberos/cyberos.yaml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only read the configuration, say what is wrong with it, and end
    #[arg(long)]
    check: bool,
    /// Use the built-in defaults, whatever file there is
    #[arg(long)]
    no_config: bool,
    /// Started by 'cyberos up': keys of the configuration that it sets itself are errors
    #[arg(long, hide = true)]
    under_up: bool,
    /// In place of `state`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// In place of `state`/sealed
    #[arg(long, value_name = "DIR")]
    sealed: Option<PathBuf>,
    /// In place of `run`/broker.sock
    #[arg(long, value_name = "PATH")]
    operator_socket: Option<PathBuf>,
    /// In place of `helper_socket`
    #[arg(long, value_name = "PATH")]
    helper_socket: Option<PathBuf>,
    /// In place of `skillfs_control`
    #[arg(long, value_name = "PATH")]
    skillfs_control: Option<PathBuf>,
    /// In place of `mount`
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// In place of `sources`
    #[arg(long, value_name = "DIR")]
    source: Vec<PathBuf>,
    /// A directory that no grant can open, beside the configured ones
    #[arg(long, value_name = "DIR")]
    never: Vec<PathBuf>,
    /// Grant what frontmatters ask for, except what is never grantable
    #[arg(long)]
    grant_requested: bool,
}

impl Options {
    fn configuration(self) -> Result<Settings> {
        let by = if self.under_up { StartedBy::Up } else { StartedBy::Service };
        let mut config =
            if self.no_config { Config::default() } else { Config::load(self.config.as_deref(), by)? };
        // Who names a socket has made its directory, whose group the socket gets.
        let group = self.operator_socket.is_none().then(|| config.operator_group.clone());
        let socket = self.operator_socket.unwrap_or_else(|| config.run.join("broker.sock"));
        config.state = self.state.unwrap_or(config.state);
        config.helper_socket = self.helper_socket.unwrap_or(config.helper_socket);
        config.skillfs_control = self.skillfs_control.unwrap_or(config.skillfs_control);
        config.mount = self.mount.unwrap_or(config.mount);
        if !self.source.is_empty() {
            config.sources = self.source;
        }
        config.never_grantable.extend(self.never);
        if self.grant_requested {
            config.grants.default = GrantSet::requested().or(&config.grants.default);
        }
        let sealed = self.sealed.unwrap_or_else(|| config.state.join("sealed"));
        Ok(Settings { config, sealed, socket, group })
    }
}

/// What the command line has made of the configuration.
struct Settings {
    config: Config,
    /// Where sealed copies are.
    sealed: PathBuf,
    /// The operators' socket.
    socket: PathBuf,
    /// Its group; none: that of its directory.
    group: Option<String>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .with_writer(|| Events(std::io::stderr()))
        .with_ansi(false)
        .init();
    let options = Options::parse();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cyberos-broker: {}", escape_for_terminal(&format!("{e:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        bail!("the broker never runs as root: start it as user cyberos, or use 'cyberos up'");
    }
    if options.check {
        return options.configuration().map(drop);
    }
    // Nobody of the same uid may look into it (`[0.5]`).
    nix::sys::prctl::set_dumpable(false).context("cannot become non-dumpable")?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o027));
    // Two hundred runs at once hold more than an ordinary shell's 1,024; without room for the descriptors of one the
    // link to the helper would be lost, and all runs with it.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let settings = options.configuration()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(settings));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(settings: Settings) -> Result<()> {
    let Settings { config, sealed, socket, group } = settings;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let broker = Broker::open(config, &sealed)?;
    for id in broker.audit.abort_open()? {
        tracing::warn!(invocation = %id, "it was running when the broker died: recorded as aborted");
    }
    let listener = cyberos_broker::control::listen(&socket, group.as_deref())?;
    // Early, so that it is known which uids are no operators'; each link tells it again.
    let helper = broker.helper.clone();
    tokio::spawn(async move {
        if let Err(e) = helper.reach().await {
            tracing::warn!(error = %e, "no sandbox can be made yet");
        }
    });
    tracing::info!(socket = %socket.display(), "serving operators");
    let serving = tokio::spawn(cyberos_broker::control::serve(broker.clone(), listener));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    serving.abort();
    let running = broker.every();
    for one in &running {
        one.stop();
    }
    let all = async {
        for one in &running {
            let _ = one.ended().wait_for(Option::is_some).await;
        }
    };
    if tokio::time::timeout(STOP_LIMIT, all).await.is_err() {
        tracing::warn!("some runs did not end in time; the helper ends them");
    }
    broker.audit.close()?;
    Ok(())
}
