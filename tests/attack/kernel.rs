//! What a skill asks of the kernel that no limit counts (threat A23): refused, and programs that ask for it in good faith go
//! on without.

use crate::support::up::{Skill, Up};

/// A skill has nothing to keep an attribute on but memory.
const ATTRIBUTES: &str = r#"#!/bin/sh
set -e
cd /tmp
mkdir from && echo kept >from/file && chmod 640 from/file
cp -a from copied && cp -p from/file plain && install -m 640 from/file installed
tar --xattrs --acls -cf all.tar from && mkdir out && tar --xattrs --acls -xpf all.tar -C out
python3 -I -c "import shutil; shutil.copy2('from/file', 'py'); shutil.copystat('from/file', 'py'); shutil.copytree('from', 'tree')"
cat copied/file plain installed out/from/file py tree/file
stat -c %a copied/file plain installed out/from/file py tree/file | uniq
exec python3 -I - <<'PY'
import errno, os, struct
entries = [(1, 7, -1)] + [(2, 7, os.getuid())] * 8000 + [(4, 7, -1), (16, 7, -1), (32, 7, -1)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries)
for place in ("/tmp/d", "/dev/shm/d"):
    os.mkdir(place)
    for name, value in (("system.posix_acl_access", acl), ("system.posix_acl_default", acl), ("user.x", b"x")):
        try:
            os.setxattr(place, name, value)
            print(place, name, "stored")
        except OSError as e:
            print(errno.errorcode[e.errno])
PY
"#;

#[test]
fn threat_a23_a_skill_stores_no_attribute_in_memory_and_programs_go_on_without() {
    let up = Up::new(|source| drop(Skill { id: "acls", main: ATTRIBUTES, ..Skill::default() }.write(source)));
    let ran = up.run("acls", &[]);
    let refused = "ENOTSUP\n".repeat(6);
    assert_eq!(
        (ran.exit, ran.stdout.as_str()),
        (0, format!("{}640\n{refused}", "kept\n".repeat(6)).as_str()),
        "{ran}"
    );
}
