//! TFRecord framing: length, checksum of the length, payload, checksum of the payload.
//!
//! The checksum is CRC-32C (Castagnoli), rotated and offset so that a record of records does not
//! check itself (TensorFlow, `core/lib/hash/crc32c.h`).

use std::io::{self, Write};

/// Bytes before the payload: its length and the length's checksum.
const HEAD: usize = 12;

/// Bytes after the payload: its checksum.
const TAIL: usize = 4;

/// The Castagnoli polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = table();

/// Appends `payload` as one record.
pub(crate) fn write(out: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    let length = (payload.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked(&length).to_le_bytes())?;
    out.write_all(payload)?;
    out.write_all(&masked(payload).to_le_bytes())
}

/// The first record of `bytes` and what follows it. The inner `None` where no whole record is left: the end, or the torn tail that a
/// crash leaves. The outer one where a checksum is wrong.
#[expect(clippy::option_option, reason = "damaged and absent are different answers")]
pub(crate) fn split(bytes: &[u8]) -> Option<Option<(&[u8], &[u8])>> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return Some(None) };
    let (length, sum) = head.split_at(8);
    if masked(length) != little(sum)? {
        return None;
    }
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let Some((payload, rest)) = rest.split_at_checked(length) else { return Some(None) };
    let Some((sum, rest)) = rest.split_at_checked(TAIL) else { return Some(None) };
    (masked(payload) == little(sum)?).then_some(Some((payload, rest)))
}

fn little(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn masked(bytes: &[u8]) -> u32 {
    crc(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!0, |sum, &byte| TABLE[((sum ^ u32::from(byte)) & 0xff) as usize] ^ (sum >> 8))
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ (POLYNOMIAL & (sum & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn records_come_back_and_flipped_bits_do_not() {
        let mut file = Vec::new();
        write(&mut file, b"one").unwrap();
        write(&mut file, b"").unwrap();
        let (first, rest) = split(&file).unwrap().unwrap();
        assert_eq!(first, b"one");
        assert_eq!(split(rest), Some(Some((&b""[..], &b""[..]))));
        for end in 0..HEAD + 3 + TAIL {
            assert_eq!(split(&file[..end]), Some(None), "{end} bytes");
        }
        for bit in 0..8 * (HEAD + 3 + TAIL) {
            let mut bad = file.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(split(&bad), None, "bit {bit}");
        }
    }
}
