//! Who called sudo, for commands that root runs at somebody's word: what belongs to that user is as trusted as that user is,
//! and root's reach is not lent out. sudo sets these variables itself, whatever they were before; whoever is root without
//! it is nobody's but root's.

/// The user who called sudo.
pub fn uid() -> Option<u32> {
    number(std::env::var("SUDO_UID").ok())
}

/// That user's group.
pub fn gid() -> Option<u32> {
    number(std::env::var("SUDO_GID").ok())
}

fn number(text: Option<String>) -> Option<u32> {
    // The last number is none's: the kernel takes it for "leave it".
    text?.parse().ok().filter(|id| *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_is_a_user() {
        for (text, user) in [("0", Some(0)), ("1000", Some(1000)), ("4294967294", Some(4_294_967_294))] {
            assert_eq!(number(Some(text.into())), user, "{text}");
        }
        for text in ["", "-1", "4294967295", "4294967296", "root", "1000 ", "0x10"] {
            assert_eq!(number(Some(text.into())), None, "{text}");
        }
        assert_eq!(number(None), None);
    }
}
