//! Which request is taken from whom, and when: one table, read before anything is done. It knows neither plans nor
//! descriptors.

use crate::ceiling::Role;
use cyberos_proto::message::{Refusal, Request};

/// Where the thing that a request names stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody has asked for it, or it has been released.
    Unknown,
    /// An invocation with uid and socket, and no sandbox: not yet, or no more.
    Leased,
    /// An invocation whose sandbox has processes.
    Running,
    /// A mount point with our view.
    Mounted,
}

use Phase::{Leased, Mounted, Running, Unknown};

type Row = (fn(&Request) -> bool, Role, &'static [Phase]);

/// Everything that is taken. Making something leads out of the phase in which it may be asked for, so it is taken once;
/// ending something may be asked for again and again.
#[rustfmt::skip]
const TABLE: [Row; 6] = [
    (|r| matches!(r, Request::CreateSocket { .. }), Role::Broker,  &[Unknown]),
    (|r| matches!(r, Request::Spawn { .. }),        Role::Broker,  &[Leased]),
    (|r| matches!(r, Request::Signal { .. }),       Role::Broker,  &[Leased, Running]),
    (|r| matches!(r, Request::Release { .. }),      Role::Broker,  &[Unknown, Leased, Running]),
    (|r| matches!(r, Request::Mount { .. }),        Role::SkillFs, &[Unknown]),
    (|r| matches!(r, Request::Unmount { .. }),      Role::SkillFs, &[Mounted]),
];

/// Takes a request or says why not. [`Refusal::Role`] ends the link.
pub(crate) fn admit(role: Role, request: &Request, phase: Phase) -> Result<(), Refusal> {
    let Some((_, _, phases)) = TABLE.iter().find(|(is, of, _)| is(request) && *of == role) else {
        return Err(Refusal::Role);
    };
    if phases.contains(&phase) { Ok(()) } else { Err(Refusal::Phase) }
}
