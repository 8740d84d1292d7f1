//! Appends rows to the ledger of a store (its one argument) for ever, and prints the number of each that was acknowledged:
//! what `ledger_disk.rs` kills.
#![allow(clippy::unwrap_used, reason = "it ends where it fails, and the test sees that")]

use cyberos_broker::audit::ledger::Ledger;
use cyberos_broker::audit::options::{Appended, Class, LedgerOptions};
use cyberos_broker::audit::row::Draft;
use std::io::Write;

fn main() {
    let store = std::env::args_os().nth(1).unwrap();
    let (ledger, _) = Ledger::open(store.as_ref(), LedgerOptions::default(), &mut |_| {}).unwrap();
    let extra = [("n".to_owned(), 7.into())].into_iter().collect();
    let (path, content_sha256) = (String::new(), String::new());
    let draft = Draft { actor: "s".into(), op: "skill.x", path, content_sha256, extra };
    let mut out = std::io::stdout();
    while let Ok(Appended::Written { seq, .. }) = ledger.append(&draft, Class::Asks { owes: 0 }) {
        // One write a line: what is read was acknowledged before the kill.
        out.write_all(format!("{seq}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}
