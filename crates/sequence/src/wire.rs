//! A value for every part that is sent: a dtype, or a number of bytes.

use crate::Part;

/// One `T` for every [`Part`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire<T> {
    /// Queries, and backward the gradient of their output.
    pub query: T,
    /// Keys and values, together or alone.
    pub key_value: T,
    /// Outputs.
    pub output: T,
    /// Gradients of queries.
    pub query_gradient: T,
    /// Gradients of keys and values.
    pub gradient: T,
}

impl<T: Copy> Wire<T> {
    /// `values` for the parts that are computed with, `sums` for gradients.
    pub fn new(values: T, sums: T) -> Wire<T> {
        Wire {
            query: values,
            key_value: values,
            output: values,
            query_gradient: sums,
            gradient: sums,
        }
    }
    /// The value of a part.
    pub fn of(self, part: Part) -> T {
        match part {
            Part::Query => self.query,
            Part::KeyValue | Part::Key | Part::Value => self.key_value,
            Part::Output => self.output,
            Part::QueryGradient => self.query_gradient,
            Part::Gradient => self.gradient,
        }
    }
    /// All values, in the order of the parts.
    pub fn all(self) -> [T; 5] {
        [self.query, self.key_value, self.output, self.query_gradient, self.gradient]
    }
    /// Maps every value by `change`, which also gets its part.
    pub fn map<U>(self, change: impl Fn(Part, T) -> U) -> Wire<U> {
        let of = |part| change(part, self.of(part));
        Wire {
            query: of(Part::Query),
            key_value: of(Part::KeyValue),
            output: of(Part::Output),
            query_gradient: of(Part::QueryGradient),
            gradient: of(Part::Gradient),
        }
    }
}
