use super::*;
use ed25519_dalek::SigningKey;

fn name(text: &str) -> SkillName {
    SkillName::new(text).unwrap()
}

fn sample(key: &SigningKey) -> Vec<u8> {
    let entries = [
        Entry::directory(b"d".to_vec()),
        Entry { kind: Kind::Executable, path: b"d/\xffm%".to_vec(), size: 3, hash: [7; 32] },
    ];
    let fallback = VersionRef { version: Version::new(1).unwrap(), tree_digest: written(&[2; 32]) };
    let manifest = Manifest::new(
        name("demo"),
        Version::new(3).unwrap(),
        "2026-11-30T12:00:00Z".to_owned(),
        Findings::default(),
        written(&[1; 32]),
        Some(fallback),
        key,
        &entries,
    );
    manifest.sign(key).unwrap()
}

#[test]
fn a_signed_manifest_verifies_only_for_its_skill_number_and_key() {
    let key = SigningKey::from_bytes(&[1; 32]);
    let bytes = sample(&key);
    let keys = TrustedKeys::only(key.verifying_key());
    let three = Version::new(3).unwrap();
    let good = verify(&bytes, &name("demo"), three, &keys).unwrap();
    assert_eq!(good.manifest.trusted().unwrap().version, three);
    assert_eq!(good.manifest.files.last().unwrap().path, "d/%FFm%25");

    assert!(matches!(verify(&bytes, &name("other"), three, &keys), Err(Flaw::OtherSkill(_))));
    let four = Version::new(4).unwrap();
    assert!(matches!(verify(&bytes, &name("demo"), four, &keys), Err(Flaw::OtherVersion(v)) if v == three));
    let stranger = TrustedKeys::only(SigningKey::from_bytes(&[2; 32]).verifying_key());
    assert!(matches!(verify(&bytes, &name("demo"), three, &stranger), Err(Flaw::UnknownKey(_))));
}

#[test]
fn no_byte_of_a_manifest_can_be_changed_added_or_removed() {
    let key = SigningKey::from_bytes(&[1; 32]);
    let bytes = sample(&key);
    let keys = TrustedKeys::only(key.verifying_key());
    let good = |bytes: &[u8]| verify(bytes, &name("demo"), Version::new(3).unwrap(), &keys).is_ok();
    assert!(good(&bytes));
    for i in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[i] ^= 1;
        assert!(!good(&changed), "byte {i} changed");
        if !i.is_multiple_of(16) {
            continue;
        }
        changed.remove(i);
        assert!(!good(&changed), "byte {i} removed");
        let mut more = bytes.clone();
        more.insert(i, b' ');
        assert!(!good(&more), "a blank before byte {i}");
    }
    assert!(!good(&[&bytes[..], b"\n"].concat()));
    assert!(!good(&[&bytes[..], &bytes[..]].concat()));
    assert!(!good(b""));
}

#[test]
fn an_unsigned_fallback_or_status_is_not_believed_even_from_the_signer() {
    let key = SigningKey::from_bytes(&[1; 32]);
    let keys = TrustedKeys::only(key.verifying_key());
    let resigned = |change: &dyn Fn(&mut Manifest)| {
        let envelope: Envelope = serde_json::from_slice(&sample(&key)).unwrap();
        let mut manifest = envelope.manifest;
        change(&mut manifest);
        verify(&manifest.sign(&key).unwrap(), &name("demo"), Version::new(3).unwrap(), &keys).is_ok()
    };
    assert!(resigned(&|_| {}));
    assert!(!resigned(&|m| m.status = Outcome::Deny), "a status that its findings don't bear out");
    assert!(!resigned(&|m| m.fallback.as_mut().unwrap().version = m.version), "a fallback to itself");
    assert!(!resigned(&|m| m.tree_digest = "sha256:1".to_owned()));
    assert!(!resigned(&|m| m.format.push('x')));
}

#[test]
fn versions_have_one_spelling() {
    assert_eq!("v000012".parse(), Ok(Version::new(12).unwrap()));
    for bad in ["v12", "v000000", "v0000012", "V000012", "v00001 ", "v+00012", "000012", "", "v", "v00001é"]
    {
        assert_eq!(bad.parse::<Version>(), Err(()), "{bad}");
    }
    assert_eq!(Version::new(1_000_000), None);
}

#[test]
fn paths_of_any_bytes_have_one_spelling_each() {
    assert_eq!(escape("ünï/\u{1f980}".as_bytes()), "ünï/\u{1f980}");
    assert_eq!(escape(b"a%b\n\xf0\x9f"), "a%25b%0A%F0%9F");
    assert_ne!(escape(b"%FF"), escape(b"\xff"));
}
