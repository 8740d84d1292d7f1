//! Words of others in messages: what they wrote, cut to a length, and what they probably meant. Pure.

/// `text` cut for a message: it may be an author's whole file.
pub(crate) fn shortened(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The candidate that `word` was probably meant to be (`[1.5]`): at most a third of its letters are wrong, case aside.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    if word.len() > 64 {
        return None;
    }
    candidates
        .into_iter()
        .map(|c| (strsim::damerau_levenshtein(&word, &c.to_ascii_lowercase().replace('-', "_")), c))
        .filter(|&(distance, c)| distance <= 2.min(c.len().max(3) / 3))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, c)| c)
}
