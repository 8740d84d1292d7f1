//! A sandbox has terminals of its own, a few, for programs that run others on one; its own descriptors are none.

use crate::support::helper::*;
use cyberos_proto::message::Exit;

/// Opens terminals until there are no more; then looks at them, fills them, and gives one back.
const ALL: &str = "
import errno, fcntl, os, pty, stat, struct, sys, termios
held = []
try:
    while len(held) < 100: held.append(pty.openpty())
except OSError as e: print(len(held), 'terminals, then', e)
names = sorted(os.ttyname(s) for _, s in held)
print(names[0], names[-1], sorted(os.listdir('/dev/pts')) == [str(n) for n in range(8)] + ['ptmx'])
print({(stat.S_IMODE(os.stat(n).st_mode), os.stat(n).st_uid == os.getuid(), os.stat(n).st_gid == os.getgid()) for n in names})
m, s = held[0]
fcntl.ioctl(m, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 100, 0, 0)); print(os.get_terminal_size(s))
try: fcntl.ioctl(s, termios.TIOCSTI, b'x'); print('typed')
except OSError as e: print('typing into it:', errno.errorcode[e.errno])
print('before', flush=True); sys.stdin.readline()
took = 0
for m, s in held:
    # Both ways, unread, and not cooked.
    how = termios.tcgetattr(s); how[3] = 0; how[1] = 0; termios.tcsetattr(s, termios.TCSANOW, how)
    for end in (m, s):
        os.set_blocking(end, False)
        try:
            while took < 1 << 30: took += os.write(end, bytes(4096))
        except BlockingIOError: pass
print('they hold at most 4 MiB', 0 < took < 4 << 20)
for end in held.pop(): os.close(end)
print(os.ttyname(pty.openpty()[1]), [os.isatty(n) for n in range(3)])
";

#[test]
fn case_185_each_sandbox_has_eight_terminals_of_its_own_and_is_on_none() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let hosts = || std::fs::read_dir("/dev/pts").map_or(0, Iterator::count);
    let before = hosts();
    // The first holds all of its own meanwhile.
    let first = broker.start(plan(&["/usr/bin/python3", "-I", "-c", ALL]), &[]);
    first.said("before");
    let second = broker.start(plan(&["/usr/bin/python3", "-I", "-c", ALL]), &[]);
    let (second, first) = (second.output(), first.output());
    assert_eq!(hosts(), before, "none of the host's");
    let expected = "8 terminals, then out of pty devices\n/dev/pts/0 /dev/pts/7 True\n{(400, True, True)}\n\
                    os.terminal_size(columns=100, lines=40)\ntyping into it: EPERM\nbefore\n\
                    they hold at most 4 MiB True\n/dev/pts/7 [False, False, False]\n";
    // What the first said up to there has been read.
    let rest = expected.split_once("before").unwrap().1;
    for (out, expected) in [(first, rest), (second, expected)] {
        assert_eq!((out.stdout.as_str(), out.stderr.as_str(), out.exit), (expected, "", Exit::Code(0)));
    }
    helper.leaves_nothing();
}
