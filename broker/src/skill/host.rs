//! A host pattern of `x-allowed-domains` (`[4.5]`): its syntax, checked when it is loaded. It matches nothing yet:
//! outbound requests are decided where they are made.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A host pattern that is well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    text: String,
}

impl HostPattern {
    /// Checks `text`. The error says what to write.
    pub fn new(text: &str) -> Result<Self, String> {
        check(text)?;
        Ok(HostPattern { text: text.to_owned() })
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn check(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("an empty pattern matches no host; remove it".into());
    }
    if text.contains("://") || text.contains(['/', '@', '?', '#']) {
        return Err("write the host alone, without scheme, user or path".into());
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Ok(());
    }
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, port)) = rest.split_once("]:") else {
            return Err("an IPv6 address is bracketed only when a port follows, as in [::1]:8080".into());
        };
        address.parse::<Ipv6Addr>().map_err(|_| format!("{address:?} is not an IPv6 address"))?;
        return check_port(port);
    }
    let host = match text.rsplit_once(':') {
        Some((host, port)) => {
            check_port(port)?;
            host
        }
        None => text,
    };
    if host.parse::<Ipv4Addr>().is_ok() {
        return Ok(());
    }
    if host.len() > 253 {
        return Err("a host name has at most 253 bytes".into());
    }
    let labels: Vec<&str> = host.split('.').collect();
    labels.iter().try_for_each(|label| check_label(label))?;
    match labels.last() {
        Some(last) if last.bytes().all(|b| b.is_ascii_digit()) => {
            Err(format!("{host:?} is not an IPv4 address"))
        }
        _ => Ok(()),
    }
}

fn check_label(label: &str) -> Result<(), String> {
    if matches!(label, "*" | "**") {
        return Ok(());
    }
    if label.is_empty() {
        return Err("a label between dots is empty (no leading, trailing or double dot)".into());
    }
    if label.len() > 63 {
        return Err(format!("the label {label:?} has more than 63 bytes"));
    }
    if label.contains('*') {
        return Err(format!(
            "'*' stands for a whole label, '**' for any number of them; {label:?} is neither"
        ));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err(format!("the label {label:?} begins or ends with '-'"));
    }
    match label.chars().find(|&c| !(c.is_alphanumeric() || c == '-' || c == '_')) {
        Some(c) => Err(format!("a host name holds no {c:?}")),
        None => Ok(()),
    }
}

fn check_port(port: &str) -> Result<(), String> {
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse::<u16>() {
        _ if port == "*" => Ok(()),
        Ok(1..) if digits => Ok(()),
        _ => Err(format!("{port:?} is not a port: write 1 to 65535, or * for any")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_patterns_are_checked_when_loaded() {
        for good in [
            "api.example.com",
            "api.example.com:8443",
            "api.example.com:*",
            "*.example.com",
            "**.example.com",
            "bücher.example",
            "BÜCHER.example",
            "**",
            "127.0.0.1",
            "127.0.0.1:8080",
            "::1",
            "::1:8080",
            "[::1]:8080",
            "localhost",
            "no",
        ] {
            assert!(HostPattern::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "a..b",
            "example.com.",
            ".example.com",
            "https://example.com",
            "example.com/x",
            "u@example.com",
            "a*.example.com",
            "***",
            "[::1]",
            "[::1]:",
            "[::1",
            "[x]:1",
            "a:0",
            "a:65536",
            "a:+1",
            "a:x",
            "a b",
            "-a.b",
            "a-.b",
            "1.2.3",
            "256.1.1.1",
            "a\0b",
            &"a".repeat(64),
        ] {
            assert!(HostPattern::new(bad).is_err(), "{bad}");
        }
    }
}
