//! Enums that are words in a file.

/// An enum whose variants are words in a file; [`words!`](crate::words) implements it.
pub trait Word: Copy + 'static {
    /// The accepted words, in order.
    const WORDS: &'static [&'static str];
    /// The word of a value.
    fn word(self) -> &'static str;
    /// The meaning of a word.
    fn from_word(word: &str) -> Option<Self>;
}

/// The words of an enum, as they are written in a file.
#[macro_export]
macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            /// The accepted words.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word of a value.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }

            /// The meaning of a word.
            pub fn from_word(word: &str) -> Option<$name> {
                match word {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }

        impl $crate::Word for $name {
            const WORDS: &'static [&'static str] = $name::WORDS;

            fn word(self) -> &'static str {
                $name::word(self)
            }

            fn from_word(word: &str) -> Option<$name> {
                $name::from_word(word)
            }
        }
    };
}
