//! Identifiers as newtypes that cannot hold a bad value: each is checked where it is made or decoded.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// Longest skill name, in bytes (`[9.2]` MAX_SKILL_NAME_LEN).
pub const MAX_SKILL_NAME_LEN: usize = 64;
/// Number of mount points that a ceiling can list (`[10.2]`).
pub const MAX_MOUNTS: u8 = 16;

/// What is wrong with a value that should have been an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadId {
    /// Not a UUID in its 36-character form.
    NotUuid,
    /// A UUID, but not of version 4 (random), variant 1.
    NotUuidV4,
    /// A skill name that is empty, `.`, `..`, too long, or not one path component.
    NotSkillName,
    /// A mount number of [`MAX_MOUNTS`] or more.
    NotMount,
}

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadId::NotUuid => "not a UUID (expected 8-4-4-4-12 hexadecimal digits)",
            BadId::NotUuidV4 => "not a random (version 4) UUID",
            BadId::NotSkillName => "not a skill name (one path component of 1 to 64 bytes, no slash, backslash or NUL, not '.' or '..')",
            BadId::NotMount => "no such mount number (0 to 15)",
        })
    }
}

impl core::error::Error for BadId {}

fn format_uuid(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, b) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            f.write_str("-")?;
        }
        write!(f, "{b:02x}")?;
    }
    Ok(())
}

fn parse_uuid(text: &str) -> Result<[u8; 16], BadId> {
    let text = text.as_bytes();
    if text.len() != 36 {
        return Err(BadId::NotUuid);
    }
    let mut out = [0u8; 16];
    let mut nibbles = 0usize;
    for (i, c) in text.iter().enumerate() {
        if matches!(i, 8 | 13 | 18 | 23) {
            if *c != b'-' {
                return Err(BadId::NotUuid);
            }
            continue;
        }
        let v = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            b'A'..=b'F' => c - b'A' + 10,
            _ => return Err(BadId::NotUuid),
        };
        out[nibbles / 2] |= if nibbles.is_multiple_of(2) { v << 4 } else { v };
        nibbles += 1;
    }
    Ok(out)
}

/// An identifier that is a random UUID (version 4).
macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "[u8; 16]", into = "[u8; 16]")]
        pub struct $name([u8; 16]);

        impl $name {
            /// Makes an id from 16 random bytes by setting the version and variant bits.
            pub fn from_random(mut bytes: [u8; 16]) -> Self {
                bytes[6] = (bytes[6] & 0x0f) | 0x40;
                bytes[8] = (bytes[8] & 0x3f) | 0x80;
                $name(bytes)
            }

            /// The 16 bytes, big-endian as written.
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl TryFrom<[u8; 16]> for $name {
            type Error = BadId;
            fn try_from(b: [u8; 16]) -> Result<Self, BadId> {
                if b[6] >> 4 == 4 && b[8] >> 6 == 2 { Ok($name(b)) } else { Err(BadId::NotUuidV4) }
            }
        }

        impl From<$name> for [u8; 16] {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(s: &str) -> Result<Self, BadId> {
                parse_uuid(s)?.try_into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                format_uuid(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                format_uuid(&self.0, f)
            }
        }
    };
}

random_id! {
    /// An invocation (`[2.2]`): one run of a skill.
    InvocationId
}

random_id! {
    /// A sandbox: an invocation's, a `Bash`'s, a trial's. Two sandboxes of one invocation have two ids, and none is the
    /// invocation's.
    SandboxId
}

/// A tenant: any UUID; the nil UUID is the tenant of installations that have only one (`[2.1]`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantId([u8; 16]);

impl TenantId {
    /// The nil UUID.
    pub const NIL: TenantId = TenantId([0; 16]);
}

impl FromStr for TenantId {
    type Err = BadId;
    fn from_str(s: &str) -> Result<Self, BadId> {
        parse_uuid(s).map(TenantId)
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format_uuid(&self.0, f)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format_uuid(&self.0, f)
    }
}

/// The name under which SkillFS shows a skill: the name of its directory, one normal path component of 1 to
/// [`MAX_SKILL_NAME_LEN`] bytes of UTF-8 (`[9.2]`). An `id` in frontmatter is narrower; this is what a view can hold.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SkillName(String);

impl SkillName {
    /// Checks `name`.
    pub fn new(name: &str) -> Result<Self, BadId> {
        let bad = name.is_empty()
            || name.len() > MAX_SKILL_NAME_LEN
            || name == "."
            || name == ".."
            || name.bytes().any(|b| matches!(b, b'/' | b'\\' | 0));
        if bad { Err(BadId::NotSkillName) } else { Ok(SkillName(name.to_owned())) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SkillName {
    type Error = BadId;
    fn try_from(s: String) -> Result<Self, BadId> {
        SkillName::new(&s)
    }
}

impl From<SkillName> for String {
    fn from(n: SkillName) -> String {
        n.0
    }
}

impl FromStr for SkillName {
    type Err = BadId;
    fn from_str(s: &str) -> Result<Self, BadId> {
        SkillName::new(s)
    }
}

impl fmt::Display for SkillName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SkillName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Number of a mount point in the helper's ceiling. Mount points are never sent as paths (`[10.2]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct MountId(u8);

impl MountId {
    /// Checks `n` against [`MAX_MOUNTS`].
    pub fn new(n: u8) -> Result<Self, BadId> {
        if n < MAX_MOUNTS { Ok(MountId(n)) } else { Err(BadId::NotMount) }
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for MountId {
    type Error = BadId;
    fn try_from(n: u8) -> Result<Self, BadId> {
        MountId::new(n)
    }
}

impl From<MountId> for u8 {
    fn from(m: MountId) -> u8 {
        m.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invocation_ids_are_version_4_only() {
        let id = InvocationId::from_random([0xff; 16]);
        assert_eq!(id.to_string().parse::<InvocationId>().unwrap(), id);
        assert_eq!("0e3b1a2c-4f5d-6789-abcd-ef0123456789".parse::<InvocationId>(), Err(BadId::NotUuidV4));
        assert_eq!("0e3b1a2c4f5d6789abcdef0123456789".parse::<InvocationId>(), Err(BadId::NotUuid));
        assert_eq!("0e3b1a2c-4f5d-4789-abcd-ef012345678ü".parse::<InvocationId>(), Err(BadId::NotUuid));
    }

    #[test]
    fn skill_names_are_one_component() {
        for bad in ["", ".", "..", "a/b", "a\\b", "a\0b", &"x".repeat(65)] {
            assert_eq!(SkillName::new(bad), Err(BadId::NotSkillName), "{bad:?}");
        }
        for good in ["a", "ünï", "--help", "a b", &"x".repeat(64), "..a"] {
            assert!(SkillName::new(good).is_ok(), "{good:?}");
        }
    }
}
