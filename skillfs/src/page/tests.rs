use super::*;
use crate::decision::{Decision, RunTouches};
use crate::exposure::{OnChange, OnFailure};
use crate::flips::Flips;
use crate::inode::{Inodes, top_id};
use crate::mapping::Mapping;
use crate::queue::Queue;
use crate::source::Sources;
use crate::stamps::Stamps;
use crate::watch::{Need, Watch};
use cyberos_proto::control::Verdict;

/// A view of one skill, shown as it is, with that many files.
struct Shown {
    source: tempfile::TempDir,
    mapping: Arc<Mapping>,
    watch: Arc<Watch>,
    inodes: Arc<Inodes>,
    view: ViewFs,
    top: u64,
}

fn shown(files: usize) -> Shown {
    let source = tempfile::tempdir().unwrap();
    let skill = source.path().join("s");
    std::fs::create_dir(&skill).unwrap();
    for n in 0..files {
        std::fs::write(skill.join(format!("file-{n}")), "x").unwrap();
    }
    let sources = Sources::open(&[source.path().to_owned()], &source.path().with_extension("view")).unwrap();
    let flips = Arc::new(Flips::default());
    let mapping = Arc::new(Mapping::new(1, OnChange::Hide, OnFailure::Hide, flips));
    let watch =
        Watch::new(Arc::new(sources), mapping.clone(), Arc::new(Queue::new(1)), Arc::default()).unwrap();
    let id = mapping.ensure(&SkillName::new("s").unwrap());
    mapping.place(id, std::fs::File::open(&skill).unwrap().into());
    let deciding = mapping.begin(id).unwrap();
    let live = deciding.live().clone();
    watch.cover(id, &live, &Need { whole: true, snapshots: Vec::new() }).unwrap();
    let stamps = Stamps::of_live(&live.root).unwrap();
    let decision = Decision {
        verdict: Verdict::Current,
        trusted: None,
        version: None,
        status: "pass".to_owned(),
        reason: None,
        warning: None,
        content_digest: None,
    };
    deciding.install(&RunTouches::default(), Ok(decision), Some(Arc::new(stamps)));
    let (watch, inodes) = (Arc::new(watch), Arc::new(Inodes::default()));
    inodes.top(id);
    let view = ViewFs::new(mapping.clone(), watch.clone(), inodes.clone(), None, Arc::default());
    Shown { source, mapping, watch, inodes, view, top: top_id(id) }
}

#[test]
fn a_page_is_looked_at_once_and_not_once_a_name() {
    let shown = shown(300);
    let (before, mut names) = (shown.watch.looks(), BTreeSet::new());
    shown.view.list_looked_up(shown.top, 0, |line| !names.insert(line.name.clone())).unwrap();
    assert_eq!(names.len(), 2 + 300);
    // 32, 64, 128 names and the rest.
    assert_eq!(shown.watch.looks() - before, 4);
    // At the root as well: once before it is known whose names they are.
    let before = shown.watch.looks();
    shown.view.list_looked_up(inode::ROOT, 0, |_| false).unwrap();
    assert_eq!(shown.watch.looks() - before, 1);
}

#[test]
fn what_the_kernel_had_no_room_for_is_given_back() {
    let shown = shown(60);
    let mut sent = Vec::new();
    let mut add = |line: &LookedUp| {
        let full = sent.len() == 12;
        sent.extend((!full).then(|| line.clone()));
        full
    };
    shown.view.list_looked_up(shown.top, 0, &mut add).unwrap();
    let last = sent[11].offset;
    for line in sent.iter().filter(|line| line.counted) {
        assert!(shown.inodes.get(line.attr.ino.0).is_ok());
        shown.view.forget(line.attr.ino.0, 1);
    }
    assert!(shown.inodes.is_empty());
    // And the next page goes on where it was full.
    let mut rest = Vec::new();
    let mut add = |line: &LookedUp| {
        rest.push(line.name.clone());
        false
    };
    shown.view.list_looked_up(shown.top, last, &mut add).unwrap();
    let names: BTreeSet<_> = sent.into_iter().map(|line| line.name).chain(rest).collect();
    assert_eq!(names.len(), 2 + 60);
}

#[test]
fn a_page_that_was_read_before_an_edit_ended_is_not_given() {
    let shown = shown(40);
    std::fs::write(shown.source.path().join("s/file-7"), "edited").unwrap();
    assert_eq!(shown.view.list_looked_up(shown.top, 0, |_| false), Err(Errno::ENOENT));
    // The same when nobody tells of it: what the files are is compared.
    let shown = self::shown(40);
    shown.watch.forget(shown.mapping.find("s").unwrap());
    std::fs::write(shown.source.path().join("s/file-7"), "edited").unwrap();
    assert_eq!(shown.view.list_looked_up(shown.top, 0, |_| false), Err(Errno::ENOENT));
}
