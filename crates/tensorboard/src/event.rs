//! One `Event` of TensorBoard as a protocol buffer, encoded and decoded by hand.
//!
//! Field numbers are those of TensorBoard's `event.proto`, `summary.proto` and `tensor.proto`.

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// The step it belongs to.
    pub step: u64,
    /// What it says.
    pub what: What,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The first event of a file: the version of the format.
    Version(String),
    /// A run starts or resumes: nothing that earlier files say of this step or later ones holds.
    Start,
    /// A number under a tag.
    Scalar {
        /// Its curve.
        tag: String,
        /// Its value; the format keeps 32 bits.
        value: f32,
    },
    /// Markdown under a tag.
    Text {
        /// Its name.
        tag: String,
        /// The Markdown.
        text: String,
    },
    /// A picture under a tag.
    Image {
        /// Its name.
        tag: String,
        /// Pixels.
        width: u32,
        /// Pixels.
        height: u32,
        /// The file, as PNG.
        png: Vec<u8>,
    },
    /// Something this crate does not write.
    Other,
}

/// `SessionLog.SessionStatus.START`.
const START: u64 = 1;

/// `Summary.Image.colorspace` of red, green and blue.
const RGB: u64 = 3;

/// `DataType.DT_STRING`.
const STRING: u64 = 7;

/// `DataClass.DATA_CLASS_TENSOR`.
const TENSOR: u64 = 2;

impl Event {
    /// The message's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let event = Message::default().double(1, self.wall_time).number(2, self.step);
        match &self.what {
            What::Version(version) => event.bytes(3, version.as_bytes()),
            What::Start => event.message(7, &Message::default().number(1, START)),
            What::Scalar { tag, value } => {
                let value = Message::default().bytes(1, tag.as_bytes()).float(2, *value);
                event.message(5, &Message::default().message(1, &value))
            }
            What::Text { tag, text } => event.message(5, &text_summary(tag, text)),
            What::Image { tag, width, height, png } => {
                event.message(5, &image_summary(tag, [*width, *height], png))
            }
            What::Other => event,
        }
        .0
    }

    /// The event in `bytes`; `None` if they are no protocol buffer.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Event> {
        let mut event = Event { wall_time: 0.0, step: 0, what: What::Other };
        for field in Fields(bytes) {
            match field? {
                (1, Value::Fixed64(bits)) => event.wall_time = f64::from_bits(bits),
                (2, Value::Number(step)) => event.step = step,
                (3, Value::Bytes(version)) => event.what = What::Version(string(version)?),
                (5, Value::Bytes(summary)) => event.what = decode_summary(summary)?,
                (7, Value::Bytes(log)) if find(log, 1)? == Some(Value::Number(START)) => {
                    event.what = What::Start;
                }
                _ => {}
            }
        }
        Some(event)
    }
}

/// `Summary { value { tag, tensor: a string, metadata: the plugin "text" } }`.
fn text_summary(tag: &str, text: &str) -> Message {
    let tensor = Message::default()
        .number(1, STRING)
        .message(2, &Message::default().message(2, &Message::default().number(1, 1)))
        .bytes(8, text.as_bytes());
    let plugin = Message::default().bytes(1, b"text");
    let metadata = Message::default().message(1, &plugin).number(4, TENSOR);
    let value =
        Message::default().bytes(1, tag.as_bytes()).message(8, &tensor).message(9, &metadata);
    Message::default().message(1, &value)
}

/// `Summary { value { tag, image { height, width, colorspace, encoded_image_string } } }`.
fn image_summary(tag: &str, [width, height]: [u32; 2], png: &[u8]) -> Message {
    let image = Message::default()
        .number(1, height.into())
        .number(2, width.into())
        .number(3, RGB)
        .bytes(4, png);
    let value = Message::default().bytes(1, tag.as_bytes()).message(4, &image);
    Message::default().message(1, &value)
}

fn decode_image(tag: String, image: &[u8]) -> Option<What> {
    let pixels = |field| match find(image, field)? {
        Some(Value::Number(pixels)) => u32::try_from(pixels).ok(),
        _ => None,
    };
    let (height, width) = (pixels(1)?, pixels(2)?);
    let Some(Value::Bytes(png)) = find(image, 4)? else { return Some(What::Other) };
    Some(What::Image { tag, width, height, png: png.to_vec() })
}

fn decode_summary(summary: &[u8]) -> Option<What> {
    let Some(Value::Bytes(value)) = find(summary, 1)? else { return Some(What::Other) };
    let Some(Value::Bytes(tag)) = find(value, 1)? else { return Some(What::Other) };
    let tag = string(tag)?;
    if let Some(Value::Fixed32(bits)) = find(value, 2)? {
        return Some(What::Scalar { tag, value: f32::from_bits(bits) });
    }
    if let Some(Value::Bytes(image)) = find(value, 4)? {
        return decode_image(tag, image);
    }
    let Some(Value::Bytes(tensor)) = find(value, 8)? else { return Some(What::Other) };
    match find(tensor, 8)? {
        Some(Value::Bytes(text)) => Some(What::Text { tag, text: string(text)? }),
        _ => Some(What::Other),
    }
}

/// The first field `number` of a message; the outer `None` if it is malformed.
#[expect(clippy::option_option, reason = "malformed and absent are different answers")]
fn find(message: &[u8], number: u64) -> Option<Option<Value<'_>>> {
    for field in Fields(message) {
        let (found, value) = field?;
        if found == number {
            return Some(Some(value));
        }
    }
    Some(None)
}

fn string(bytes: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(bytes).ok()?.to_owned())
}

/// A message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, mut value: u64) -> Message {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }
    fn number(self, field: u64, value: u64) -> Message {
        self.varint(field << 3).varint(value)
    }
    fn double(self, field: u64, value: f64) -> Message {
        self.varint(field << 3 | 1).raw(&value.to_le_bytes())
    }
    fn float(self, field: u64, value: f32) -> Message {
        self.varint(field << 3 | 5).raw(&value.to_le_bytes())
    }
    fn bytes(self, field: u64, value: &[u8]) -> Message {
        self.varint(field << 3 | 2).varint(value.len() as u64).raw(value)
    }
    fn message(self, field: u64, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }
    fn raw(mut self, value: &[u8]) -> Message {
        self.0.extend_from_slice(value);
        self
    }
}

/// A field's value, by wire type.
#[derive(Debug, PartialEq)]
enum Value<'a> {
    Number(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message; ends with `None` inside where it is malformed.
struct Fields<'a>(&'a [u8]);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_has_the_bytes_of_protoc() {
        // `protoc --encode` of wall_time: 1.5, step: 300, summary { value { tag: "a", simple_value: 2 } }.
        let what = What::Scalar { tag: "a".into(), value: 2.0 };
        let event = Event { wall_time: 1.5, step: 300, what };
        let wanted = b"\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01a\x15\0\0\0\x40";
        assert_eq!(event.encode(), wanted);
    }

    #[test]
    fn events_come_back() {
        let whats = [
            What::Version("brain.Event:2".into()),
            What::Start,
            What::Scalar { tag: "train/loss".into(), value: -0.25 },
            What::Text { tag: "config".into(), text: "# ünï\n\nlong ".repeat(40) },
            What::Image { tag: "map".into(), width: 300, height: 2, png: vec![0x89; 200] },
        ];
        for what in whats {
            let event = Event { wall_time: 1e9, step: u64::from(u32::MAX) + 7, what };
            assert_eq!(Event::decode(&event.encode()), Some(event));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let what = What::Text { tag: "t".into(), text: "text".into() };
        let good = Event { wall_time: 2.0, step: 3, what }.encode();
        for end in 0..good.len() {
            let _ = Event::decode(&good[..end]);
            let mut bad = good.clone();
            bad[end] = 0xff;
            let _ = Event::decode(&bad);
        }
        assert_eq!(Event::decode(&[0x0b]), None);
        assert_eq!(Event::decode(&[0xff; 11]), None);
    }
}
