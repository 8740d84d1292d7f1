//! The tools that this build has (`[5.1]`): one file each, with its name, schema, plan, and what is run. They decide nothing
//! and record nothing, but for the row that is a tool's own. What they touch they touch through the handles of their permit.

mod args;
mod bash;
mod memory;
mod read;
mod resources;

pub use bash::Bash;
pub use memory::{MemoryEmit, MemoryRead};
pub use read::Read;
pub use resources::CallResources;

use crate::audit::{Audit, Started};
use crate::call::ToolResult;
use crate::catalogue::{self, CatalogueError};
use crate::disk_guard::DiskGuard;
use crate::helper::Helper;
use crate::memory::Store;
use cyberos_proto::plan::Feature;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A planned call, ready to be run. Who runs it needs the right to: a [`Started`], which is used up.
pub trait Work: Send {
    /// Does it. Dropped when the call is cut.
    fn run(self: Box<Self>, started: Started, resources: CallResources) -> InFlight;
}

/// A call that runs.
pub type InFlight = Pin<Box<dyn Future<Output = ToolResult> + Send>>;
/// The tools by name, with plans that can be run.
pub type Catalogue = catalogue::Catalogue<Box<dyn Work>>;
/// A tool of such a catalogue.
pub type Tool = dyn catalogue::Tool<Work = Box<dyn Work>>;

/// What the tools work with.
#[derive(Clone, Debug)]
pub struct Deps {
    /// For `memory.emit` rows.
    pub audit: Audit,
    /// The memory store.
    pub store: Arc<Store>,
    /// Bytes of it that one tenant may use (`[2.8]`).
    pub tenant_quota: u64,
    /// Makes the sandboxes of Bash.
    pub helper: Helper,
    /// What such a sandbox must not lack (`sandbox.require`).
    pub require: Vec<Feature>,
    /// Says when there is too little of it for Bash.
    pub space: DiskGuard,
}

/// All tools of this build.
pub fn standard(deps: Deps) -> Result<Catalogue, CatalogueError> {
    Catalogue::of([
        Box::new(Bash::new(&deps)) as Box<Tool>,
        Box::new(Read),
        Box::new(MemoryRead::new(deps.store.clone())),
        Box::new(MemoryEmit::new(deps)),
    ])
}
