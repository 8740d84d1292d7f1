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
    /// The value of `key`, made now if there is none, or if there is one from before `of` was as it is. Of more than
    /// `MOST`, the one that has not been used for longest goes.
    pub(crate) fn get<E>(&mut self, of: S, key: K, make: impl FnOnce(&K) -> Result<V, E>) -> Result<&V, E> {
        if self.of.as_ref() != Some(&of) {
            self.made.clear();
            self.of = Some(of);
        }
        if let Some(at) = self.made.iter().position(|(k, _)| *k == key) {
            self.made[..=at].rotate_right(1);
        } else {
            let value = make(&key)?;
            self.made.truncate(MOST.saturating_sub(1));
            self.made.insert(0, (key, value));
        }
        Ok(&self.made[0].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_made_changes_nothing() {
        let mut recent = Recent::<u8, u8, u8, 2>::default();
        assert_eq!(recent.get(0, 1, |_| Ok::<_, ()>(10)), Ok(&10));
        assert_eq!(recent.get(0, 2, |_| Err(())), Err(()));
        assert_eq!(recent.get(0, 1, |_| Err(())), Ok(&10));
    }

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
                prop_assert_eq!(recent.get(of, key, |_| Ok::<_, ()>(n)), Ok(&expected));
            }
        }
    }
}
