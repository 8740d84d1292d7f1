//! What things come to: at a start an error is a text for who started it; in a request it is a refusal for the peer.

use core::fmt::Display;
use cyberos_proto::message::Refusal;

/// Says of what an error at start is.
pub(crate) fn named<T>(what: impl Display, result: Result<T, impl Display>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// Unless `right`, `why` is an error at start.
pub(crate) fn must(right: bool, why: impl Into<String>) -> Result<(), String> {
    if right { Ok(()) } else { Err(why.into()) }
}

/// Unless `right`, a descriptor is refused because of `why`.
pub(crate) fn fit(right: bool, why: impl Into<String>) -> Result<(), Refusal> {
    if right { Ok(()) } else { Err(Refusal::Descriptor(why.into())) }
}
