//! Foreign text on its way to people: [`cyberos_proto::terminal`], which SkillFS and its provider use too. Tried here, where
//! there are the means to.

pub use cyberos_proto::terminal::*;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn case_163_no_text_can_drive_the_terminal() {
        let hostile =
            "\n{\"event\":\"completed\"}\t\x1b[2J\u{202e}exe.\u{9b}31m\x7f\r\0\u{2066}\u{61c}\u{200f}";
        assert_eq!(
            escape_for_terminal(hostile),
            "\n{\"event\":\"completed\"}\t\\x1b[2J\\u{202e}exe.\\x9b31m\\x7f\\x0d\\x00\\u{2066}\\u{61c}\\u{200f}"
        );
        assert_eq!(escape_line("a\nb\tc\x1b"), "a\\nb\\tc\\x1b");
        assert_eq!(escape_line("a\u{2028}b\u{feff}\u{e0041}"), "a\\u{2028}b\\u{feff}\\u{e0041}");
    }

    #[test]
    fn a_value_is_one_word_or_in_quotes() {
        for plain in ["Read", "memories/a-b.md", "sha256:0f", "é", "12", "{}", "a:b,c"] {
            assert_eq!(quoted(plain), plain);
        }
        for (text, shown) in [
            ("", r#""""#),
            ("a  skill_id=other", r#""a  skill_id=other""#),
            ("a=b", r#""a=b""#),
            ("\"a\" 'b'", r#""\"a\" 'b'""#),
            ("a\\nb", r#""a\\nb""#),
            ("a\nb\tc\r\x1b[0m", r#""a\nb\tc\x0d\x1b[0m""#),
            ("\u{9b}\u{202e}\u{2028}\u{a0}\u{3000}", r#""\x9b\u{202e}\u{2028}\xa0\u{3000}""#),
        ] {
            assert_eq!(quoted(text), shown, "{text:?}");
        }
    }

    #[test]
    fn whatever_is_in_an_event_of_a_log_it_is_one_line() {
        let mut log = Events(Vec::new());
        std::io::Write::write_all(&mut log, b"WARN it says\n2026 INFO all is well\x1b[2J\xff\n").unwrap();
        std::io::Write::write_all(&mut log, b"next\n").unwrap();
        assert_eq!(
            String::from_utf8(log.0).unwrap(),
            "WARN it says\\n2026 INFO all is well\\x1b[2J\u{fffd}\nnext\n"
        );
    }

    proptest! {
        #[test]
        fn what_comes_out_is_fit_and_what_was_fit_is_unchanged(text in any::<String>()) {
            let escaped = escape_for_terminal(&text);
            let fit = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || turns_direction(c));
            prop_assert!(escaped.chars().all(fit));
            prop_assert_eq!(&*escape_for_terminal(&escaped), &*escaped);
            prop_assert!(!escape_line(&text).contains('\n'));
            // The end of a value is where its quotes end, and what was quoted can be told apart.
            let value = quoted(&text);
            prop_assert!(value.chars().all(|c| c != '\n' && c != '\t' && fit(c)));
            match value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) {
                Some(inside) => prop_assert!(!inside.replace("\\\\", "").replace("\\\"", "").contains('"')),
                None => prop_assert!(!value.contains([' ', '=', '"'])),
            }
            let value = serde_json::json!({ text: [1, 2.5] });
            let json = escape_json(&format!("{value:#}")).into_owned();
            prop_assert!(json.chars().all(fit));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        }
    }
}
