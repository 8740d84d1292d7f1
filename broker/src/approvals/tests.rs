//! What consent is worth.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn skill(lines: &str) -> Skill {
    let text =
        format!("---\nid: demo\nversion: 1.0.0\ndescription: d\nallowed_memory_scopes: []\n{lines}\n---\n");
    crate::skill::parse(text.as_bytes(), None, &|_| false).unwrap()
}

const BASE: &str = "allowed_tools: [Read, Bash]\nx-allowed-files: [/a/**, /b]\neffort_minutes: 30\nx-memory-mb: 1024\n\
                    x-rate-limit-per-minute: 60";

fn store() -> (tempfile::TempDir, Approvals) {
    let dir = tempfile::tempdir().unwrap();
    let store = Approvals::new(dir.path());
    (dir, store)
}

#[test]
fn consent_is_for_those_wishes_and_a_wider_set_asks_again() {
    let approval = Approval::new(&skill(BASE), TenantId::NIL, "root", 5);
    for same_or_less in [
        BASE.to_owned(),
        BASE.replace("[Read, Bash]", "[Bash, Read]"),
        BASE.replace("Read, ", ""),
        BASE.replace("Read, Bash]", "Read, Bash]\ndisallowed_tools: [Bash]"),
        BASE.replace(", /b", ""),
        BASE.replace("30", "10").replace("1024", "512").replace("60", "5"),
        BASE.replace("x-memory-mb: 1024\n", ""),
        format!("{BASE}\ntenant_scope: pinned"),
    ] {
        assert!(approval.covers(&skill(&same_or_less)), "{same_or_less}");
    }
    for more in [
        BASE.replace("Bash]", "Bash, Write]"),
        BASE.replace("/a/**", "/**"),
        BASE.replace("/b", "/b/c"),
        BASE.replace("30", "31"),
        BASE.replace("1024", "1025"),
        BASE.replace("60", "61"),
        BASE.replace("\nx-rate-limit-per-minute: 60", ""),
        format!("{BASE}\nx-max-processes: 9"),
        format!("{BASE}\nx-allowed-domains: [a.b]"),
        format!("{BASE}\nsync_class: shareable"),
    ] {
        assert!(!approval.covers(&skill(&more)), "{more}");
    }
    let wider = Wishes::of(&skill(&BASE.replace("Bash]", "Bash, Write]")));
    assert_eq!(approval.wishes.beyond(&wider).collect::<Vec<_>>(), ["Write"]);
    assert_ne!(approval.wishes.digest(), wider.digest());
}

#[test]
fn a_pinned_skill_runs_only_under_the_tenant_that_was_recorded() {
    let pinned = skill("allowed_tools: []\ntenant_scope: pinned");
    let tenant: TenantId = "0e3b1a2c-4f5d-4789-abcd-ef0123456789".parse().unwrap();
    let approval = Approval::new(&pinned, tenant, "root", 5);
    assert!(check_tenant(&pinned, Some(&approval), tenant).is_ok());
    assert!(check_tenant(&pinned, Some(&approval), TenantId::NIL).is_err());
    assert!(check_tenant(&pinned, None, tenant).is_err());
    let wider = skill("allowed_tools: [Bash]\ntenant_scope: pinned");
    assert!(check_tenant(&wider, Some(&approval), tenant).is_err());
    assert!(check_tenant(&skill("allowed_tools: []"), None, tenant).is_ok());
}

#[test]
fn what_is_recorded_is_read_back_and_can_be_taken_back() {
    let (dir, store) = store();
    assert_eq!(store.read("demo").unwrap(), None);
    let approval = Approval::new(&skill(BASE), TenantId::NIL, "alice", 1_700_000_000);
    store.record(&approval).unwrap();
    store.record(&approval).unwrap();
    assert_eq!(store.read("demo").unwrap(), Some(approval));
    let names: Vec<_> = fs::read_dir(dir.path().join("approvals")).unwrap().flatten().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].metadata().unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(dir.path().join("approvals")).unwrap().mode() & 0o7777, 0o700);
    assert!(store.remove("demo").unwrap());
    assert!(!store.remove("demo").unwrap());
    assert_eq!(store.read("demo").unwrap(), None);
}

#[test]
fn a_file_that_this_broker_did_not_write_is_no_consent() {
    let (dir, store) = store();
    store.record(&Approval::new(&skill(BASE), TenantId::NIL, "root", 5)).unwrap();
    let path = dir.path().join("approvals/demo.json");
    let good = fs::read_to_string(&path).unwrap();
    let refused = |text: &str| {
        fs::write(&path, text).unwrap();
        store.read("demo").unwrap_err().to_string()
    };
    assert!(refused(&good.replace("\"/b\"", "\"/**\"")).contains("digest"));
    assert!(refused(&good.replace("\"demo\"", "\"other\"")).contains("other"));
    assert!(refused(&good.replace("\"format\": 1", "\"format\": 2")).contains("format 2"));
    for bad in ["", "{}", "[]", &good[..40], &good.replace("\"by\"", "\"byy\""), &format!("{good} x")] {
        refused(bad);
    }
    fs::write(&path, &good).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(store.read("demo").unwrap_err().to_string().contains("0600"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(store.read("demo").is_ok());
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
    assert!(store.read("demo").is_err());
}

#[test]
fn case_137_an_id_that_is_a_path_reaches_no_file() {
    let (_dir, store) = store();
    for id in ["../x", "a/b", "", ".", "..", ".tmp-1", "a\0b"] {
        assert!(store.read(id).is_err(), "{id:?}");
        assert!(store.remove(id).is_err(), "{id:?}");
    }
}
