//! What takes the 10 s after which the clock is looked at again.

use super::*;
use crate::support::waiting::eventually;
use std::time::Duration;

/// The background thread looks too, since a quiet broker writes nothing for hours.
#[test]
fn a_step_is_told_of_though_nothing_else_is_written() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let ledger = hands.open(dir.path());
    hands.set(NOVEMBER + DAY);
    let told = eventually(Duration::from_secs(60), || ledger.status().seq != 0);
    assert!(told, "no row tells of it");
    ledger.close().unwrap();
    assert_eq!(whole(dir.path())[0].op, "audit.clock_stepped");
}
