//! What the helper is asked to run: the skill's entry point with exactly the environment of `[2.3]`, at the sealed
//! copy, under the limits of its grants.

use crate::call::Invocation;
use crate::exit::{Exit, OperatorError};
use crate::grants::Grants;
use crate::skill::Skill;
use cyberos_proto::plan::{Bind, BindKind, MAX_WORD_BYTES, Profile, SandboxPath, SpawnPlan};
use std::time::Duration;

pub(super) fn plan(
    skill: &Skill,
    invocation: &Invocation,
    grants: &Grants,
    args: &[Vec<u8>],
    effort: Duration,
) -> Result<SpawnPlan, OperatorError> {
    let bad = |fault| OperatorError::new(Exit::INVALID, format!("{}: {fault}", skill.id));
    let home = SandboxPath::new(&format!("/opt/cyberos/skills/{}", skill.id)).map_err(bad)?;
    let program =
        SandboxPath::new(&format!("{}/{}", home.as_str(), skill.extensions.entrypoint)).map_err(bad)?;
    let variable = |name: &str, value: &str| format!("{name}={value}").into_bytes();
    let plan = SpawnPlan {
        args: std::iter::once(program.as_str().as_bytes().to_vec()).chain(args.iter().cloned()).collect(),
        env: vec![
            variable("CYBEROS_BROKER_SOCKET", &format!("/tmp/cyberos-skill-broker.{}.sock", invocation.id)),
            variable("CYBEROS_SKILL_ID", &skill.id),
            variable("CYBEROS_INVOCATION_ID", &invocation.id.to_string()),
            variable("CYBEROS_TENANT_ID", &invocation.tenant.to_string()),
            variable("RUST_LOG", "warn"),
            variable("PATH", "/usr/local/bin:/usr/bin:/bin"),
            variable("HOME", "/tmp"),
            variable("LANG", "C.UTF-8"),
        ],
        binds: vec![Bind { target: home.clone(), kind: BindKind::Sealed }],
        cwd: home,
        program,
        socket: true,
        limits: grants.limits().of_sandbox(effort),
        profile: Profile::Skill,
    };
    let taken = plan.word_bytes();
    if taken > MAX_WORD_BYTES {
        return Err(OperatorError::new(
            Exit::USAGE,
            format!(
                "{}: its arguments and environment take {taken} bytes, each with one more for its end; there \
                 is room for {MAX_WORD_BYTES}: hand over the rest on standard input (--stdin)",
                skill.id
            ),
        ));
    }
    plan.check().map_err(|fault| OperatorError::new(Exit::USAGE, format!("{}: {fault}", skill.id)))?;
    Ok(plan)
}
