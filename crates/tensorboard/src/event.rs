//! One `Event` of TensorBoard as a protocol buffer, encoded and decoded by hand.
//!
//! Field numbers are those of TensorBoard's `event.proto`, `summary.proto` and `tensor.proto`.

use crate::message::{Fields, Message, Value, find, string};

/// An event: one record of a file of TensorBoard.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// The step it belongs to.
    pub step: u64,
    /// The event's payload.
    pub payload: Payload,
}

/// The payload of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// The first event of a file: the version of the format.
    Version(String),
    /// A run starts or resumes: nothing that earlier files say of this step or later ones holds.
    Start,
    /// A number under a tag.
    Scalar {
        /// The tag, by which TensorBoard names the curve.
        tag: String,
        /// The value; the format keeps 32 bits.
        value: f32,
    },
    /// Markdown under a tag.
    Text {
        /// The tag.
        tag: String,
        /// The Markdown.
        text: String,
    },
    /// A picture under a tag.
    Image {
        /// The tag.
        tag: String,
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
        /// The picture as a PNG file.
        png: Vec<u8>,
    },
    /// Data of a plugin of TensorBoard, in the plugin's own format.
    Plugin {
        /// The tag.
        tag: String,
        /// The name of the plugin.
        plugin: String,
        /// A message of the plugin, where it looks for one beside the tag.
        content: Vec<u8>,
        /// A message of the plugin, where it looks for one as a value.
        value: Vec<u8>,
    },
    /// Something this crate does not write.
    Other,
}

/// `SessionLog.SessionStatus.START`.
const START: u64 = 1;

/// `Summary.Image.colorspace` of red, green and blue.
const RGB: u64 = 3;

/// The plugin of texts.
const TEXT: &str = "text";

/// The plugin of scalars, as TensorFlow 2 writes them.
const SCALARS: &str = "scalars";

/// `DataType.DT_FLOAT`.
const FLOAT: u64 = 1;

/// `DataType.DT_STRING`.
const STRING: u64 = 7;

/// `DataClass.DATA_CLASS_TENSOR`.
const TENSOR: u64 = 2;

impl Event {
    /// The message's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let event = Message::default().double(1, self.wall_time).number(2, self.step);
        match &self.payload {
            Payload::Version(version) => event.bytes(3, version.as_bytes()),
            Payload::Start => event.message(7, &Message::default().number(1, START)),
            Payload::Scalar { tag, value } => {
                let value = Message::default().bytes(1, tag.as_bytes()).float(2, *value);
                event.message(5, &Message::default().message(1, &value))
            }
            Payload::Text { tag, text } => event.message(5, &text_summary(tag, text)),
            Payload::Image { tag, width, height, png } => {
                event.message(5, &image_summary(tag, [*width, *height], png))
            }
            Payload::Plugin { tag, plugin, content, value } => {
                event.message(5, &plugin_summary(tag, plugin, content, value))
            }
            Payload::Other => event,
        }
        .0
    }

    /// The event in `bytes`, as one for each value of its summary; `None` if they are no protocol buffer.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Event>> {
        let (mut wall_time, mut step, mut payloads) = (0.0, 0, Vec::new());
        for field in Fields(bytes) {
            match field? {
                (1, Value::Fixed64(bits)) => wall_time = f64::from_bits(bits),
                (2, Value::Number(number)) => step = number,
                (3, Value::Bytes(version)) => payloads.push(Payload::Version(string(version)?)),
                (5, Value::Bytes(summary)) => payloads.extend(decode_summary(summary)?),
                (7, Value::Bytes(log)) if find(log, 1)? == Some(Value::Number(START)) => {
                    payloads.push(Payload::Start);
                }
                _ => {}
            }
        }
        if payloads.is_empty() {
            payloads.push(Payload::Other);
        }
        Some(payloads.into_iter().map(|payload| Event { wall_time, step, payload }).collect())
    }
}

/// `Summary { value { tag, tensor: a string, metadata: the plugin "text" } }`.
fn text_summary(tag: &str, text: &str) -> Message {
    let metadata = metadata(TEXT, &[]).number(4, TENSOR);
    let value = Message::default()
        .bytes(1, tag.as_bytes())
        .message(8, &string_tensor(text.as_bytes()))
        .message(9, &metadata);
    Message::default().message(1, &value)
}

/// A summary of a plugin. Without a value its tensor is empty, since TensorBoard wants one.
fn plugin_summary(tag: &str, plugin: &str, content: &[u8], value: &[u8]) -> Message {
    let nothing = || Message::default().number(1, FLOAT).message(2, &dimension(0));
    let tensor = if value.is_empty() { nothing() } else { string_tensor(value) };
    let value = Message::default()
        .bytes(1, tag.as_bytes())
        .message(8, &tensor)
        .message(9, &metadata(plugin, content));
    Message::default().message(1, &value)
}

/// A tensor of one string, which may be any bytes.
fn string_tensor(value: &[u8]) -> Message {
    Message::default().number(1, STRING).message(2, &dimension(1)).bytes(8, value)
}

/// A shape of one dimension.
fn dimension(size: u64) -> Message {
    let size = if size == 0 { Message::default() } else { Message::default().number(1, size) };
    Message::default().message(2, &size)
}

/// `SummaryMetadata { plugin_data { plugin_name, content } }`.
fn metadata(plugin: &str, content: &[u8]) -> Message {
    let data = Message::default().bytes(1, plugin.as_bytes());
    let data = if content.is_empty() { data } else { data.bytes(2, content) };
    Message::default().message(1, &data)
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

fn decode_image(tag: String, image: &[u8]) -> Option<Payload> {
    let pixels = |field| match find(image, field)? {
        Some(Value::Number(pixels)) => u32::try_from(pixels).ok(),
        _ => None,
    };
    let (height, width) = (pixels(1)?, pixels(2)?);
    let Some(Value::Bytes(png)) = find(image, 4)? else { return Some(Payload::Other) };
    Some(Payload::Image { tag, width, height, png: png.to_vec() })
}

/// All values of a summary, in order.
fn decode_summary(summary: &[u8]) -> Option<Vec<Payload>> {
    let mut payloads = Vec::new();
    for field in Fields(summary) {
        if let (1, Value::Bytes(value)) = field? {
            payloads.push(decode_value(value)?);
        }
    }
    Some(payloads)
}

fn decode_value(value: &[u8]) -> Option<Payload> {
    let Some(Value::Bytes(tag)) = find(value, 1)? else { return Some(Payload::Other) };
    let tag = string(tag)?;
    if let Some(Value::Fixed32(bits)) = find(value, 2)? {
        return Some(Payload::Scalar { tag, value: f32::from_bits(bits) });
    }
    if let Some(Value::Bytes(image)) = find(value, 4)? {
        return decode_image(tag, image);
    }
    match (find(value, 8)?, find(value, 9)?) {
        (Some(Value::Bytes(tensor)), Some(Value::Bytes(metadata))) => {
            decode_tensor(tag, tensor, metadata)
        }
        _ => Some(Payload::Other),
    }
}

/// A text, a scalar as TensorFlow 2 writes it, or what another plugin reads.
fn decode_tensor(tag: String, tensor: &[u8], metadata: &[u8]) -> Option<Payload> {
    let bytes = |message, field| match find(message, field)? {
        Some(Value::Bytes(bytes)) => Some(bytes),
        _ => Some(&[][..]),
    };
    let data = bytes(metadata, 1)?;
    let (plugin, content, value) = (bytes(data, 1)?, bytes(data, 2)?, bytes(tensor, 8)?);
    match string(plugin)? {
        plugin if plugin == TEXT => Some(Payload::Text { tag, text: string(value)? }),
        plugin => {
            if plugin == SCALARS
                && let Some(value) = decode_float(tensor)?
            {
                return Some(Payload::Scalar { tag, value });
            }
            let [content, value] = [content, value].map(<[u8]>::to_vec);
            Some(Payload::Plugin { tag, plugin, content, value })
        }
    }
}

/// The number in a tensor of one f32: in `tensor_content`, or in `float_val`, which is packed or not. The inner `None`: it is another
/// tensor.
#[expect(clippy::option_option, reason = "malformed and another are different answers")]
fn decode_float(tensor: &[u8]) -> Option<Option<f32>> {
    if find(tensor, 1)? != Some(Value::Number(FLOAT)) {
        return Some(None);
    }
    let found = match find(tensor, 4)? {
        None => find(tensor, 5)?,
        content => content,
    };
    Some(match found {
        Some(Value::Bytes(bytes)) => bytes.try_into().ok().map(f32::from_le_bytes),
        Some(Value::Fixed32(bits)) => Some(f32::from_bits(bits)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_has_the_bytes_of_protoc() {
        // `protoc --encode` of wall_time: 1.5, step: 300, summary { value { tag: "a", simple_value: 2 } }.
        let payload = Payload::Scalar { tag: "a".into(), value: 2.0 };
        let event = Event { wall_time: 1.5, step: 300, payload };
        let wanted = b"\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01a\x15\0\0\0\x40";
        assert_eq!(event.encode(), wanted);
    }

    fn plugin(content: &[u8], value: &[u8]) -> Payload {
        let [content, value] = [content, value].map(<[u8]>::to_vec);
        Payload::Plugin { tag: "config".into(), plugin: "custom_scalars".into(), content, value }
    }

    #[test]
    fn events_come_back() {
        let payloads = [
            Payload::Version("brain.Event:2".into()),
            Payload::Start,
            Payload::Scalar { tag: "train/loss".into(), value: -0.25 },
            Payload::Text { tag: "config".into(), text: "# ünï\n\nlong ".repeat(40) },
            Payload::Image { tag: "map".into(), width: 300, height: 2, png: vec![0x89; 200] },
            plugin(b"", b"\xff as a value"),
            plugin(b"\xff beside the tag", b""),
        ];
        for payload in payloads {
            let event = Event { wall_time: 1e9, step: u64::from(u32::MAX) + 7, payload };
            assert_eq!(Event::decode(&event.encode()), Some(vec![event]));
        }
    }

    #[test]
    fn every_value_of_a_summary_is_read_and_scalars_of_tensorflow_2_too() {
        let scalar = |tag: &str, tensor: Message| {
            let tensor = Message::default().number(1, FLOAT).bytes(2, &[]).raw(&tensor.0);
            let value = Message::default().bytes(1, tag.as_bytes()).message(8, &tensor);
            value.message(9, &metadata(SCALARS, &[]))
        };
        let bits = 2.5_f32.to_le_bytes();
        let values = [
            Message::default().bytes(1, b"plain").float(2, 2.5),
            scalar("content", Message::default().bytes(4, &bits)),
            scalar("packed", Message::default().bytes(5, &bits)),
            scalar("single", Message::default().float(5, 2.5)),
        ];
        let add = |summary: Message, value: &Message| summary.message(1, value);
        let summary = values.iter().fold(Message::default(), add);
        let bytes = Message::default().double(1, 1.5).number(2, 3).message(5, &summary).0;
        let wanted = ["plain", "content", "packed", "single"].map(|tag| {
            let payload = Payload::Scalar { tag: tag.into(), value: 2.5 };
            Event { wall_time: 1.5, step: 3, payload }
        });
        assert_eq!(Event::decode(&bytes).unwrap(), wanted);
        // Several numbers are no scalar.
        let two = scalar("two", Message::default().bytes(4, &[0; 8]));
        let bytes = Message::default().message(5, &Message::default().message(1, &two)).0;
        assert!(matches!(Event::decode(&bytes).unwrap()[0].payload, Payload::Plugin { .. }));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let payload = Payload::Text { tag: "t".into(), text: "text".into() };
        let good = Event { wall_time: 2.0, step: 3, payload }.encode();
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
