//! What somebody meant who wrote a path that does not exist.

/// The known path that differs least from `key`, if it differs little.
pub(super) fn nearest(
    key: &str,
    paths: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    paths
        .map(|path| (distance(key, path), path))
        .min()
        .filter(|&(distance, path)| distance <= 1 + path.len() / 4)
        .map(|(_, path)| path)
}

/// Edits that turn `a` into `b` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}
