//! Documents packed one after another into a sequence.

use std::ops::Range;

/// Where the documents of a packed sequence end. What follows the last one is one more document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Documents {
    /// One past the last position of every document, strictly increasing.
    ends: Vec<usize>,
}

impl Documents {
    /// Documents of these lengths, one after another; empty ones are skipped, and so is what lies beyond the last position that can be
    /// numbered.
    pub fn of_lengths(lengths: &[usize]) -> Documents {
        let mut end = 0_usize;
        let ends = lengths.iter().map(|length| {
            end = end.saturating_add(*length);
            end
        });
        let mut ends: Vec<usize> = ends.filter(|end| *end > 0).collect();
        ends.dedup();
        Documents { ends }
    }
    /// The positions of the document that `position` is in.
    pub fn around(&self, position: usize) -> Range<usize> {
        let index = self.ends.partition_point(|end| *end <= position);
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends.get(index).copied().unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_follow_each_other() {
        let documents = Documents::of_lengths(&[3, 0, 1]);
        let around: Vec<_> = (0..6).map(|position| documents.around(position)).collect();
        assert_eq!(around, [0..3, 0..3, 0..3, 3..4, 4..usize::MAX, 4..usize::MAX]);
        assert_eq!(Documents::default().around(7), 0..usize::MAX);
        let endless = Documents::of_lengths(&[2, usize::MAX, 5]);
        assert_eq!(endless, Documents::of_lengths(&[2, usize::MAX - 2]));
        assert_eq!(endless.around(7), 2..usize::MAX);
    }
}
