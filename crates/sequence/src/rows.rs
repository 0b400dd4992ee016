//! Rows of a shard that can be passed to a kernel: an offset and a stride.

/// Every `stride`-th row of a shard from `offset` on, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rows {
    /// The first row.
    pub offset: usize,
    /// The distance from one row to the next, at least 1.
    pub stride: usize,
    /// The number of rows.
    pub count: usize,
}

impl Rows {
    /// The first `count` rows.
    pub fn all(count: usize) -> Rows {
        Rows { offset: 0, stride: 1, count }
    }
    /// The rows, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| self.offset + self.stride * index)
    }
    /// Whether these are all rows of a shard of `tokens`.
    pub fn are_all_of(self, tokens: usize) -> bool {
        self.offset == 0 && self.count == tokens && (self.stride == 1 || tokens <= 1)
    }

    /// These rows and `next` as one progression, where they form one.
    pub(crate) fn join(self, next: Rows) -> Option<Rows> {
        let stride = match (self.count, next.count) {
            (1, 1) => next.offset.checked_sub(self.offset)?,
            (1, _) => next.stride,
            _ => self.stride,
        };
        let continues = next.offset == self.offset + stride * self.count
            && (next.count == 1 || next.stride == stride);
        continues.then_some(Rows { stride, count: self.count + next.count, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progressions_join_where_they_go_on() {
        let rows = |offset, stride, count| Rows { offset, stride, count };
        assert_eq!(rows(1, 3, 4).join(rows(13, 3, 2)), Some(rows(1, 3, 6)));
        assert_eq!(rows(1, 3, 4).join(rows(13, 7, 1)), Some(rows(1, 3, 5)));
        assert_eq!(rows(1, 9, 1).join(rows(5, 4, 2)), Some(rows(1, 4, 3)));
        assert_eq!(rows(1, 9, 1).join(rows(3, 9, 1)), Some(rows(1, 2, 2)));
        assert_eq!(rows(1, 3, 4).join(rows(14, 3, 2)), None);
        assert_eq!(rows(5, 1, 1).join(rows(1, 1, 1)), None);
    }
}
