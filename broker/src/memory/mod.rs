//! Memory (`[5.3]`): files of a tenant, written and read by the memory tools. [`store`] keeps the files; the full-text
//! index that MemorySearch needs will stand beside it, can be rebuilt from it, and never outranks it.

mod open;
pub mod store;
mod usage;

pub use store::{Allowance, MemoryError, MemoryFile, Store, TENANT_QUOTA, Written};
pub use usage::Meter;
