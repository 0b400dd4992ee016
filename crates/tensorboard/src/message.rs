//! Protocol buffers, as far as event files need them: fields one after another, each a number with its wire type and a
//! value.

/// The first field `number` of a message; the outer `None` if it is malformed.
#[expect(clippy::option_option, reason = "malformed and absent are different answers")]
pub(crate) fn find(message: &[u8], number: u64) -> Option<Option<Value<'_>>> {
    for field in Fields(message) {
        let (found, value) = field?;
        if found == number {
            return Some(Some(value));
        }
    }
    Some(None)
}

/// Text, if it is UTF-8.
pub(crate) fn string(bytes: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(bytes).ok()?.to_owned())
}

/// A message under construction.
#[derive(Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    fn varint(mut self, mut value: u64) -> Message {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }
    /// A whole number, or a truth.
    pub(crate) fn number(self, field: u64, value: u64) -> Message {
        self.varint(field << 3).varint(value)
    }
    /// A number of 64 bits.
    pub(crate) fn double(self, field: u64, value: f64) -> Message {
        self.varint(field << 3 | 1).raw(&value.to_le_bytes())
    }
    /// A number of 32 bits.
    pub(crate) fn float(self, field: u64, value: f32) -> Message {
        self.varint(field << 3 | 5).raw(&value.to_le_bytes())
    }
    /// Bytes, or text.
    pub(crate) fn bytes(self, field: u64, value: &[u8]) -> Message {
        self.varint(field << 3 | 2).varint(value.len() as u64).raw(value)
    }
    /// A message in a message.
    pub(crate) fn message(self, field: u64, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }
    /// Fields that are bytes already.
    pub(crate) fn raw(mut self, value: &[u8]) -> Message {
        self.0.extend_from_slice(value);
        self
    }
}

/// A field's value, by wire type.
#[derive(Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message; ends with `None` inside where it is malformed.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}
