use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn floor(n: u32) -> Floor {
    Floor { newest: Version::new(n).unwrap(), manifest: written(&[1; 32]), trusted: None }
}

#[test]
fn a_record_only_grows_even_when_many_write_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("ledger");
    let skill = Path::new("/srv/skills/demo");
    std::thread::scope(|scope| {
        for n in 1..=32 {
            let state = &state;
            scope.spawn(move || Floors::new(state).raise(skill, &floor(n % 17 + 1)).unwrap());
        }
    });
    let floors = Floors::new(&state);
    assert_eq!(floors.read(skill).unwrap(), Some(floor(17)));
    floors.raise(skill, &floor(3)).unwrap();
    assert_eq!(floors.read(skill).unwrap(), Some(floor(17)));
    assert_eq!(floors.read(Path::new("/srv/skills/other")).unwrap(), None);
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "no temporary file stays");
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_damaged_or_exposed_record_is_an_error_and_an_empty_one_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("ledger");
    let skill = Path::new("/srv/skills/demo");
    let floors = Floors::new(&state);
    floors.raise(skill, &floor(2)).unwrap();
    let record = state.join(file_name(skill));
    let good = fs::read(&record).unwrap();
    for bad in [&b"{}"[..], b"\0", &good[..good.len() / 2], &[&good[..], b"x"].concat()] {
        fs::write(&record, bad).unwrap();
        assert!(matches!(floors.read(skill), Err(FloorError::Damaged(_))), "{bad:?}");
        assert!(floors.raise(skill, &floor(9)).is_err());
    }
    fs::remove_file(&record).unwrap();
    nix::unistd::mkfifo(&record, Mode::S_IRWXU).unwrap();
    assert!(matches!(floors.read(skill), Err(FloorError::Damaged(_))));
    fs::remove_file(&record).unwrap();
    fs::write(&record, "").unwrap();
    assert_eq!(floors.read(skill).unwrap(), None);
    floors.raise(skill, &floor(1)).unwrap();
    assert_eq!(floors.read(skill).unwrap(), Some(floor(1)));
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(floors.read(skill), Err(FloorError::Unsafe(_))));
}
