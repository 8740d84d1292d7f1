//! Some seconds of random packets with random descriptors, always the same ones: each is answered or ends the link, and
//! never the helper.

use crate::raw::*;
use crate::support::helper::{Asks, BROKER, Helper, SKILLFS, plan, skill};
use cyberos_proto::message::{Refusal, Reply};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// For how long; and from where.
const FOR: Duration = Duration::from_secs(4);
const SEED: u64 = 0x5EED_0000_C0DE_0001;

/// xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }
}

/// One good packet, spoilt in one of the ways in which packets go bad; or nothing but noise.
fn packet(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    match random.below(8) {
        0 => (0..random.below(400)).map(|_| random.byte()).collect(),
        1 => {
            bytes.truncate(random.below(bytes.len()));
            bytes
        }
        2 => {
            bytes.extend((0..random.below(9)).map(|_| random.byte()));
            bytes
        }
        3 => {
            let other = &seeds[random.below(seeds.len())];
            let at = random.below(bytes.len());
            bytes.truncate(at);
            bytes.extend(&other[random.below(other.len())..]);
            bytes
        }
        4 => {
            let at = random.below(bytes.len());
            bytes.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x0f]);
            bytes
        }
        5 => bytes,
        n => {
            for _ in 0..=random.below(n) {
                let at = 1 + random.below(bytes.len() - 1);
                bytes[at] = match random.below(3) {
                    0 => random.byte(),
                    1 => bytes[at] ^ (1 << random.below(8)),
                    _ => bytes[at].wrapping_add(1),
                };
            }
            bytes
        }
    }
}

#[test]
fn random_packets_of_a_broker_never_hurt_anybody() {
    let helper = Helper::start("");
    let other = Other::skillfs(&helper);
    // Few invocations, so that phases come and go.
    let ids: Vec<_> = (0..4).map(|_| new_id()).collect();
    let mut seeds: Vec<Vec<u8>> = ids.iter().flat_map(|id| of_broker(*id)).map(|r| good(&r)).collect();
    seeds.push(good(&ids[0].prepare(skill("x"))));
    seeds.push(good(&ids[1].prepare(plan(&["/bin/sh", "-c", "exit 3"]))));
    let sealed = helper.sealed("x", "#!/bin/sh\n");
    let told = told(&helper, BROKER, &seeds, sealed, || other.answers());
    assert!(told.refused > 10 && told.done > 10, "{told:?}");
}

/// With mounts that come and go, since nobody serves them.
#[test]
fn random_packets_of_skillfs_never_hurt_anybody() {
    let helper = Helper::start("");
    let mut dialler = Dialler::new(&helper.socket(), BROKER);
    let broker = dialler.dial();
    let release = good(&new_id().release());
    let answers = || {
        let asked = Instant::now();
        assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
        assert!(asked.elapsed() < OTHER_LINK, "{:?}", asked.elapsed());
    };
    answers();
    let seeds: Vec<Vec<u8>> = of_skillfs().iter().map(good).collect();
    let file = open("/etc/hostname", OFlag::O_RDONLY, Mode::empty()).unwrap();
    let told = told(&helper, SKILLFS, &seeds, file, answers);
    assert!(told.refused + told.done > 10, "{told:?}");
}

/// What came of it.
#[derive(Debug, Default)]
struct Told {
    sent: u32,
    ended: u32,
    refused: u32,
    done: u32,
}

fn told(helper: &Helper, role: u32, seeds: &[Vec<u8>], carried: OwnedFd, other: impl Fn()) -> Told {
    let before = at_rest(helper);
    let pid = helper.pid();
    let path = |name: &str, flags: OFlag| open(name, flags, Mode::empty()).unwrap();
    let fds: [OwnedFd; 4] = [
        carried,
        path("/dev/null", OFlag::O_RDWR),
        path("/", OFlag::O_PATH),
        path("/proc/self/maps", OFlag::O_RDONLY),
    ];
    let mut dialler = Dialler::new(&helper.socket(), role);
    let mut random = Random(SEED);
    let mut told = Told::default();
    let mut raw = dialler.dial();
    let until_then = Instant::now() + FOR;
    while Instant::now() < until_then {
        let bytes = packet(&mut random, seeds);
        let count = [0, 0, 0, 1, 1, 2, 64, 253][random.below(8)];
        let carried: Vec<RawFd> = (0..count).map(|_| fds[random.below(fds.len())].as_raw_fd()).collect();
        told.sent += 1;
        match raw.ask(&bytes, &carried) {
            Answer::Said(Reply::Refused(Refusal::Malformed | Refusal::Role)) | Answer::Closed => {
                told.ended += 1;
                if told.ended.is_multiple_of(20) {
                    other();
                }
                raw = dialler.dial();
            }
            Answer::Said(Reply::Refused(_)) => told.refused += 1,
            Answer::Said(_) => told.done += 1,
        }
    }
    drop(raw);
    println!("{told:?}");
    assert!(told.sent > 300 && told.ended > 100, "{told:?}");
    other();
    assert_eq!(helper.pid(), pid);
    flat(helper, &before);
    helper.leaves_nothing();
    let log = helper.log();
    assert!(!log.contains("panicked"), "{log}");
    told
}
