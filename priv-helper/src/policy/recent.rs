//! What is dear to make and used again and again: the last few of it, as long as what all of it was made from stays as
//! it was. Pure: who makes it says how, and of what.

/// Values by key; the last used is first.
#[derive(Debug)]
pub(crate) struct Recent<S, K, V, const MOST: usize> {
    of: Option<S>,
    made: Vec<(K, V)>,
}

impl<S, K, V, const MOST: usize> Default for Recent<S, K, V, MOST> {
    fn default() -> Self {
        Recent { of: None, made: Vec::new() }
    }
}

impl<S: PartialEq, K: PartialEq, V, const MOST: usize> Recent<S, K, V, MOST> {
    /// The value of `key`, unless there is none, or all are from before `of` was as it is.
    pub(crate) fn get(&mut self, of: &S, key: &K) -> Option<&V> {
        if self.of.as_ref() != Some(of) {
            self.made.clear();
        }
        let at = self.made.iter().position(|(k, _)| k == key)?;
        self.made[..=at].rotate_right(1);
        self.made.first().map(|(_, value)| value)
    }

    /// Keeps a value that was made of `of`. Of more than `MOST`, the one that has not been used for longest goes.
    pub(crate) fn put(&mut self, of: S, key: K, value: V) {
        if self.of.as_ref() != Some(&of) {
            self.made.clear();
            self.of = Some(of);
        }
        self.made.retain(|(k, _)| *k != key);
        self.made.truncate(MOST.saturating_sub(1));
        self.made.insert(0, (key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_made_again_only_when_it_must_be(uses in prop::collection::vec((0u8..2, 0u8..6), 0..60)) {
            let mut recent = Recent::<u8, u8, usize, 3>::default();
            // The same as a plain list of uses.
            let (mut last, mut model): (u8, Vec<(u8, usize)>) = (0, Vec::new());
            for (n, (of, key)) in uses.into_iter().enumerate() {
                if of != last {
                    model.clear();
                    last = of;
                }
                let known = model.iter().position(|(k, _)| *k == key).map(|at| model.remove(at));
                let expected = known.map_or(n, |(_, made)| made);
                model.push((key, expected));
                if model.len() > 3 {
                    model.remove(0);
                }
                if recent.get(&of, &key).is_none() {
                    recent.put(of, key, n);
                }
                prop_assert_eq!(recent.get(&of, &key), Some(&expected));
            }
        }
    }
}
