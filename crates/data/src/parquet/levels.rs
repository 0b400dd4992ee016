//! How many values a row has in a column of lists, told from a page's repetition levels before the values are made: a few bytes
//! can say that there are billions.

use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::errors::Result;

use super::pages::wrong;

/// The most values of a column in a row: messages of a conversation, say.
const MOST: u64 = 1 << 17;

/// How many values the row that is open has so far.
pub(super) struct Repeated {
    /// Bits of a level; 0: no row has more than one value.
    bits: u32,
    values: u64,
}

impl Repeated {
    /// Of a column with levels of up to `max`.
    pub(super) fn new(max: i16) -> Repeated {
        Repeated { bits: i16::BITS - max.max(0).leading_zeros(), values: 0 }
    }

    /// Counts what is in a page.
    ///
    /// # Errors
    /// When a row has more than the most.
    pub(super) fn page(&mut self, page: &Page) -> Result<()> {
        if self.bits == 0 {
            return Ok(());
        }
        let short = || wrong("a page is too short for its levels".to_owned());
        let bytes = match page {
            Page::DataPage { buf, rep_level_encoding: Encoding::RLE, .. } => {
                let (length, rest) = buf.split_first_chunk::<4>().ok_or_else(short)?;
                rest.get(..u32::from_le_bytes(*length) as usize).ok_or_else(short)?
            }
            Page::DataPageV2 { buf, rep_levels_byte_len, .. } => {
                buf.get(..*rep_levels_byte_len as usize).ok_or_else(short)?
            }
            _ => return Err(wrong("the levels of a page are packed as of old".to_owned())),
        };
        self.levels(bytes, u64::from(page.num_values()))
    }

    /// Runs of levels, and levels packed by eights, in turn.
    fn levels(&mut self, mut bytes: &[u8], mut left: u64) -> Result<()> {
        while left > 0 && !bytes.is_empty() {
            let head = varint(&mut bytes);
            if head & 1 == 0 {
                let width = (self.bits as usize).div_ceil(8).min(bytes.len());
                let (level, rest) = bytes.split_at(width);
                bytes = rest;
                let run = (head >> 1).min(left);
                left -= run;
                if level.iter().any(|byte| *byte != 0) {
                    self.add(run)?;
                } else if run > 0 {
                    self.values = 1;
                }
                continue;
            }
            let size =
                usize::try_from(head >> 1).unwrap_or(usize::MAX).saturating_mul(self.bits as usize);
            let (packed, rest) = bytes.split_at(size.min(bytes.len()));
            bytes = rest;
            let count = (packed.len() as u64 * 8 / u64::from(self.bits)).min(left);
            let bits = self.bits as usize;
            for from in (0..count as usize).map(|index| index * bits) {
                if (from..from + bits).any(|bit| packed[bit / 8] >> (bit % 8) & 1 == 1) {
                    self.add(1)?;
                } else {
                    self.values = 1;
                }
            }
            left -= count;
        }
        Ok(())
    }

    fn add(&mut self, values: u64) -> Result<()> {
        self.values = self.values.saturating_add(values);
        if self.values > MOST {
            return Err(wrong(format!("a row has more than {MOST} values in a column")));
        }
        Ok(())
    }
}

/// What does not end is the largest number.
fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return number;
        }
    }
    u64::MAX - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_row_are_counted_over_runs_and_packed_levels() {
        let mut repeated = Repeated::new(1);
        // 0, then 200 times 1; then 8 packed levels, the third of which begins a row.
        repeated.levels(&[2, 0, 0x90, 3, 1, 3, 0b1111_1011], 209).unwrap();
        assert_eq!(repeated.values, 6);
        // More than a row may have, in five bytes.
        let error = repeated.levels(&[0x80, 0x80, 0x80, 0x80, 8, 1], u64::MAX).unwrap_err();
        assert!(error.to_string().contains("a row has more than 131072 values in a column"));
        // No row goes on: a billion rows is fine.
        repeated.levels(&[0x80, 0x80, 0x80, 0x80, 8, 0], u64::MAX).unwrap();
    }
}
