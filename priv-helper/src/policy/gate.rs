//! Which request the helper takes from whom, and when: one table, read before anything is done. It knows neither plans
//! nor descriptors.

use crate::policy::ceiling::Role;
use cyberos_proto::message::{Refusal, Request};

/// Where the thing that a request names stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody has asked for it, or it has been released; or it is about nothing that could stand anywhere.
    Unknown,
    /// A sandbox with a lease, and without processes: not yet, or no more.
    Leased,
    /// A sandbox that is being built, or being started, or being ended.
    Busy,
    /// A sandbox that is built, and waits to be started.
    Prepared,
    /// A sandbox whose program runs.
    Running,
    /// A mount point with our view.
    Mounted,
}

use Phase::{Busy, Leased, Mounted, Prepared, Running, Unknown};
use Role::{Broker, SkillFs};

/// Takes a request or says why not. [`Refusal::Role`] ends the link. Making something leads out of the phase in which it
/// may be asked for, so it is taken once; ending something may be asked for again and again.
#[rustfmt::skip]
pub(crate) fn admit(role: Role, request: &Request, phase: Phase) -> Result<(), Refusal> {
    let phases: &[Phase] = match (role, request) {
        (Broker,  Request::Describe)                             => &[Unknown],
        (Broker,  Request::CreateSocket { .. })                  => &[Unknown],
        (Broker,  Request::Prepare { plan, .. }) if plan.socket  => &[Leased],
        (Broker,  Request::Prepare { .. })                       => &[Unknown, Leased],
        (Broker,  Request::Go { .. })                            => &[Prepared],
        (Broker,  Request::Signal { .. })                        => &[Leased, Busy, Prepared, Running],
        (Broker,  Request::Release { .. })                       => &[Unknown, Leased, Busy, Prepared, Running],
        (SkillFs, Request::Mount { .. })                         => &[Unknown],
        (SkillFs, Request::Unmount { .. })                       => &[Mounted],
        (SkillFs, Request::RegisterBacking { .. })               => &[Mounted],
        (SkillFs, Request::CloseBacking { .. })                  => &[Mounted],
        _ => return Err(Refusal::Role),
    };
    if phases.contains(&phase) { Ok(()) } else { Err(Refusal::Phase) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cyberos_proto::ids::{InvocationId, MountId, SandboxId};
    use cyberos_proto::message::Signal;
    use cyberos_proto::plan::{Limits, MemoryLimit, Profile, SandboxPath, SpawnPlan};

    fn prepare(socket: bool) -> Request {
        let limits = Limits {
            memory_mb: 1,
            memory_kind: MemoryLimit::AddressSpace,
            cpu_s: 1,
            processes: 1,
            open_files: 1,
            file_mb: 1,
            tmp_mb: 1,
        };
        let plan = SpawnPlan {
            program: SandboxPath::new("/bin/true").unwrap(),
            args: vec![b"true".to_vec()],
            env: Vec::new(),
            cwd: SandboxPath::new("/tmp").unwrap(),
            binds: Vec::new(),
            socket,
            limits,
            profile: Profile::Skill,
        };
        Request::Prepare { sandbox: SandboxId::from_random([1; 16]), plan: Box::new(plan) }
    }

    #[test]
    fn each_request_is_taken_from_one_role_in_its_phases_alone() {
        let (sandbox, mount) = (SandboxId::from_random([1; 16]), MountId::new(1).unwrap());
        let invocation = InvocationId::from_random([2; 16]);
        for (request, of, phases) in [
            (Request::Describe, Broker, &[Unknown][..]),
            (Request::CreateSocket { sandbox, invocation }, Broker, &[Unknown]),
            (prepare(true), Broker, &[Leased]),
            (prepare(false), Broker, &[Unknown, Leased]),
            (Request::Go { sandbox }, Broker, &[Prepared]),
            (Request::Signal { sandbox, signal: Signal::Kill }, Broker, &[Leased, Busy, Prepared, Running]),
            (Request::Release { sandbox }, Broker, &[Unknown, Leased, Busy, Prepared, Running]),
            (Request::Mount { mount }, SkillFs, &[Unknown]),
            (Request::Unmount { mount }, SkillFs, &[Mounted]),
            (Request::RegisterBacking { mount }, SkillFs, &[Mounted]),
            (Request::CloseBacking { mount, id: 1 }, SkillFs, &[Mounted]),
        ] {
            for role in [Broker, SkillFs] {
                for phase in [Unknown, Leased, Busy, Prepared, Running, Mounted] {
                    let expected = match (role == of, phases.contains(&phase)) {
                        (false, _) => Err(Refusal::Role),
                        (true, false) => Err(Refusal::Phase),
                        (true, true) => Ok(()),
                    };
                    assert_eq!(admit(role, &request, phase), expected, "{role:?} {request:?} {phase:?}");
                }
            }
        }
    }
}
