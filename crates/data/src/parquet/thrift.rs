//! As much of a parquet file's descriptions (Thrift's compact protocol) as tells, before the library believes them, how much
//! memory what they describe takes.

/// Types of fields.
const STOP: u8 = 0;
const I32: u8 = 5;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// How deep structures may lie in each other.
const DEEPEST: usize = 48;

/// The most columns and groups of a schema.
const ELEMENTS: u64 = 1 << 16;

/// The error for a malformed footer.
const BROKEN: &str = "its footer is not what such files have";

/// What the header of a page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// What the page is: 1 for an index, which is passed over.
    pub(super) kind: i64,
    /// Bytes of the page as it is read.
    pub(super) uncompressed: i64,
    /// Bytes of the page in the file.
    pub(super) compressed: i64,
    /// Bytes of the header.
    pub(super) length: usize,
}

impl Head {
    /// Of the header at the beginning of `bytes`; `None`: it is none, or has not ended yet.
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let mut reader = Reader { bytes, at: 0, lists: false };
        let mut numbers = [0; 3];
        let mut id = 0;
        loop {
            let (kind, next) = reader.field(id)?;
            match (kind, next) {
                (STOP, _) => break,
                // In order: nothing can be said a second time.
                (_, next) if next <= id => return None,
                (I32, 1..=3) => numbers[next as usize - 1] = reader.zigzag()?,
                (I32, 4) | (STRUCT, 5..=8) => reader.skip(kind, 0)?,
                (_, 1..=8) => return None,
                _ => reader.skip(kind, 0)?,
            }
            id = next;
        }
        let [kind, uncompressed, compressed] = numbers;
        Some(Head { kind, uncompressed, compressed, length: reader.at })
    }
}

/// Holds a file's footer to bounds: all of it ends, and its schema is no tree of endless depth.
///
/// # Errors
/// What is wrong with it.
pub(super) fn bounded_schema(footer: &[u8]) -> Result<(), &'static str> {
    let mut reader = Reader { bytes: footer, at: 0, lists: true };
    let (mut id, mut schema) = (0, false);
    loop {
        let (kind, next) = reader.field(id).ok_or(BROKEN)?;
        match (kind, next) {
            (STOP, _) if schema => return Ok(()),
            (LIST, 2) if !schema => {
                reader.elements()?;
                schema = true;
            }
            (STOP, _) | (_, 2) => return Err(BROKEN),
            _ => reader.skip(kind, 0).ok_or(BROKEN)?,
        }
        id = next;
    }
}

/// Bytes and how far they are read.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether there may be lists: no page's header has one, of which the library would read on behind the end of the file.
    lists: bool,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// The type and the number of the next field, behind that of number `last`.
    fn field(&mut self, last: i64) -> Option<(u8, i64)> {
        let byte = self.byte()?;
        let kind = byte & 0xf;
        match byte >> 4 {
            _ if kind == STOP => Some((STOP, 0)),
            0 => Some((kind, self.zigzag()?)),
            delta => Some((kind, last.checked_add(i64::from(delta))?)),
        }
    }

    /// The type and the number of a list's elements.
    fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        let count = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
        Some((byte & 0xf, count))
    }

    fn forward(&mut self, bytes: u64) -> Option<()> {
        let end =
            (self.at as u64).checked_add(bytes).filter(|end| *end <= self.bytes.len() as u64)?;
        self.at = end as usize;
        Some(())
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match kind {
            1 | 2 => Some(()),
            3 => self.forward(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.forward(8),
            8 => {
                let length = self.varint()?;
                self.forward(length)
            }
            LIST if self.lists => {
                let (kind, count) = self.list()?;
                // Truths in a list take no byte for the library, and may be 2^64: no footer has such.
                let counted = !matches!(kind, 1 | 2);
                counted.then(|| (0..count).try_for_each(|_| self.skip(kind, depth + 1)))?
            }
            STRUCT => loop {
                let (kind, _) = self.field(0)?;
                if kind == STOP {
                    return Some(());
                }
                self.skip(kind, depth + 1)?;
            },
            _ => None,
        }
    }

    /// The list of a schema's elements, each of which says how many of those behind it are its own.
    fn elements(&mut self) -> Result<(), &'static str> {
        let (_, count) = self.list().filter(|(kind, _)| *kind == STRUCT).ok_or(BROKEN)?;
        if count > ELEMENTS {
            return Err("its schema has more than 65536 columns and groups");
        }
        // How many elements are still to come in every group that is open.
        let mut open: Vec<u64> = Vec::new();
        for index in 0..count {
            let children = self.children().filter(|children| *children <= count - index);
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            open.push(children.ok_or(BROKEN)?);
            while open.last() == Some(&0) {
                open.pop();
            }
            if open.len() > DEEPEST {
                return Err("its schema has groups in groups, more than 48 deep");
            }
        }
        Ok(())
    }

    fn children(&mut self) -> Option<u64> {
        let (mut id, mut children) = (0, 0);
        loop {
            let (kind, next) = self.field(id)?;
            match (kind, next) {
                (STOP, _) => return Some(children),
                (I32, 5) if children == 0 => children = u64::try_from(self.zigzag()?).ok()?,
                (_, 5) => return None,
                _ => self.skip(kind, 0)?,
            }
            id = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_a_page_are_read_and_nothing_is_said_twice() {
        // A data page of 300 bytes, 100 in the file, with 7 values; then its data.
        let head =
            [0x15, 0, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x2c, 0x15, 14, 0x15, 0, 0, 0, 9, 9];
        let wanted = Head { kind: 0, uncompressed: 300, compressed: 100, length: 15 };
        assert_eq!(Head::read(&head), Some(wanted));
        for length in 0..15 {
            assert_eq!(Head::read(&head[..length]), None);
        }
        // The second field again, by its full number.
        let twice = [0x15, 0, 0x15, 2, 0x15, 2, 0x05, 4, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0];
        assert_eq!(Head::read(&twice), None);
    }

    #[test]
    fn a_list_that_the_library_would_read_for_ever_is_refused() {
        // Sizes as above, and in what is said of its values a list of 2^31 - 1 doubles, or truths.
        for kind in [7, 1] {
            let mut head = vec![0x15, 0, 0x15, 2, 0x15, 2, 0x2c, 0x19, 0xf0 | kind];
            head.extend([0xff, 0xff, 0xff, 0xff, 0x07, 0, 0]);
            assert_eq!(Head::read(&head), None);
        }
        // A schema of one element without children, and as many truths behind it.
        let truths = [0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07];
        let footer = [&[0x15, 2, 0x19, 0x1c, 0x48, 0, 0][..], &truths, &[0]].concat();
        assert_eq!(bounded_schema(&footer), Err(BROKEN));
    }

    #[test]
    fn schemas_are_bounded() {
        // Version; a list of so many groups in each other, each of a name's length 0 and one child.
        let nested = |count: u8| {
            let mut footer = vec![0x15, 2, 0x19, 0xfc, count];
            for left in (0..count).rev() {
                footer.extend([0x48, 0, 0x15, u8::from(left > 0) * 2, 0]);
            }
            footer.push(0);
            footer
        };
        bounded_schema(&nested(40)).unwrap();
        let deep = bounded_schema(&nested(100)).unwrap_err();
        assert_eq!(deep, "its schema has groups in groups, more than 48 deep");
        for bad in
            [&[][..], &[0], &nested(40)[..30], &[0x15, 2, 0x19, 0x1c, 0x48, 0, 0x15, 0x7e, 0]]
        {
            assert_eq!(bounded_schema(bad), Err(BROKEN));
        }
    }
}
