//! The broker's configuration (`[7.4]`): one YAML file, read once at start into a [`Config`] in which every value is
//! resolved. Unknown keys, wrong types and values out of range are errors with line and suggestion; nothing is
//! guessed. It knows what a grant is made of, not what it decides.

mod faults;
mod read;
mod section;
mod table;

pub use faults::{ConfigError, ConfigFault};
pub use read::StartedBy;
pub use table::{Allow, GrantSet, GrantTable, Rule};

use cyberos_proto::ids::TenantId;
use cyberos_proto::plan::Feature;
use std::path::PathBuf;

/// Where the packaged configuration is.
pub const DEFAULT_PATH: &str = "/etc/cyberos/cyberos.yaml";

/// Everything the broker can be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `tenant`: whose memory a run without `--tenant` works on.
    pub tenant: TenantId,
    /// `state`: store/, tenants/, sealed/, approvals/.
    pub state: PathBuf,
    /// `run`: where the operator socket `broker.sock` is made.
    pub run: PathBuf,
    /// `helper_socket`.
    pub helper_socket: PathBuf,
    /// `skillfs_control`.
    pub skillfs_control: PathBuf,
    /// `mount`: SkillFS's view.
    pub mount: PathBuf,
    /// `work`: the directory that the default grants give.
    pub work: PathBuf,
    /// `sources`: the skills' real directories, never grantable.
    pub sources: Vec<PathBuf>,
    /// `never_grantable`: more directories that no grant can open.
    pub never_grantable: Vec<PathBuf>,
    /// `grants`.
    pub grants: GrantTable,
    /// `quota`.
    pub quota: Quota,
    /// `logs`.
    pub logs: Logs,
    /// `seal`.
    pub seal: Seal,
    /// `audit`.
    pub audit: Audit,
    /// `sandbox.require`: parts of the sandbox that must not be skipped (`[10.6]`).
    pub require: Vec<Feature>,
    /// `on_hidden`: what happens to a running skill whose verdict turns hidden (`[9.3]`).
    pub on_hidden: OnHidden,
    /// `require_signatures` (`[1.6]`).
    pub require_signatures: bool,
    /// `operator_group`: who may use the operator socket (`[7.2]`).
    pub operator_group: String,
}

/// `quota` (`[2.8]`), in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// What one invocation may write.
    pub invocation_write_mb: u64,
    /// What the ledger rows of one invocation's calls may take.
    pub invocation_ledger_mb: u64,
    /// What a tenant's memory may hold.
    pub tenant_store_mb: u64,
}

/// `logs` (`[2.6]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logs {
    /// Ended invocations whose output is kept.
    pub keep: usize,
    /// What all captured output may take, in MiB.
    pub max_mb: u64,
}

/// `seal` (`[0.1]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Largest skill, in apparent bytes.
    pub max_bytes: u64,
    /// Most entries of a skill.
    pub max_entries: u64,
    /// Bytes of sealed copies that are kept though no invocation holds them.
    pub cache: u64,
}

/// `audit` (`[6.4]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// `audit.durability`.
    pub durability: Durability,
    /// `audit.on_failure`.
    pub on_failure: OnFailure,
    /// `audit.queue_rows`: rows kept in memory while the ledger cannot be written.
    pub queue_rows: usize,
}

/// Whether a call waits until its row is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// `normal`: in the file.
    Normal,
    /// `fsync`: on the disk.
    Fsync,
}

/// What a failing ledger means for calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// `queue`: served until the queue is full, then refused.
    Queue,
    /// `refuse`: refused at once.
    Refuse,
    /// `continue`: served; rows are dropped and counted.
    Continue,
}

/// What happens to a running skill that becomes hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHidden {
    /// `tell`: the operator reads of it.
    Tell,
    /// `terminate`: it is stopped.
    Terminate,
}

impl Default for Config {
    /// What the package ships (`packaging/config/cyberos.yaml`).
    fn default() -> Self {
        let work = PathBuf::from("/srv/cyberos/work");
        Config {
            tenant: TenantId::NIL,
            state: "/var/lib/cyberos".into(),
            run: "/run/cyberos".into(),
            helper_socket: "/run/cyberos-helper/helper.sock".into(),
            skillfs_control: "/run/cyberos-skillfs/control.sock".into(),
            mount: "/skills".into(),
            sources: vec!["/opt/cyberos/skills".into()],
            never_grantable: Vec::new(),
            grants: GrantTable::packaged(&work),
            work,
            quota: Quota { invocation_write_mb: 256, invocation_ledger_mb: 256, tenant_store_mb: 4096 },
            logs: Logs { keep: 64, max_mb: 1024 },
            seal: Seal { max_bytes: 256 << 20, max_entries: 20_000, cache: 2 << 30 },
            audit: Audit { durability: Durability::Normal, on_failure: OnFailure::Queue, queue_rows: 10_000 },
            require: Vec::new(),
            on_hidden: OnHidden::Tell,
            require_signatures: false,
            operator_group: "cyberos".into(),
        }
    }
}

#[cfg(test)]
mod tests;
