//! What memory is for, as the thread that asks for it says.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Index;

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Weights, and f32 masters where weights are narrower.
    Weights,
    /// Gradients of weights.
    Gradients,
    /// The optimizer's moments.
    Optimizer,
    /// What layers compute and keep, and its gradients: whatever no other class takes.
    Activations,
    /// Keys, values and their gradients on their way round. A block that is lent is its owner's.
    KeyValue,
    /// What attention needs while it runs: its running state, packed operands, who sees whom.
    Workspace,
    /// Token ids.
    Data,
}

impl Class {
    /// Every class, in order.
    pub const ALL: [Class; 7] = [
        Class::Weights,
        Class::Gradients,
        Class::Optimizer,
        Class::Activations,
        Class::KeyValue,
        Class::Workspace,
        Class::Data,
    ];

    /// Its name in metrics and plans.
    pub fn name(self) -> &'static str {
        match self {
            Class::Weights => "weights",
            Class::Gradients => "gradients",
            Class::Optimizer => "optimizer",
            Class::Activations => "activations",
            Class::KeyValue => "key_value",
            Class::Workspace => "workspace",
            Class::Data => "data",
        }
    }
}

/// Bytes of every class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClass([u64; Class::ALL.len()]);

impl ByClass {
    /// What `of` says of each class.
    pub fn new(of: impl FnMut(Class) -> u64) -> ByClass {
        ByClass(Class::ALL.map(of))
    }

    /// All classes.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The larger of both, class by class.
    #[must_use]
    pub fn most(self, other: ByClass) -> ByClass {
        ByClass::new(|class| self[class].max(other[class]))
    }

    /// The same with other bytes of a class.
    #[must_use]
    pub fn with(self, class: Class, bytes: u64) -> ByClass {
        ByClass::new(|one| if one == class { bytes } else { self[one] })
    }

    /// Every class by its name.
    pub fn named(&self) -> [(&'static str, u64); Class::ALL.len()] {
        Class::ALL.map(|class| (class.name(), self[class]))
    }
}

impl Index<Class> for ByClass {
    type Output = u64;
    fn index(&self, class: Class) -> &u64 {
        &self.0[class as usize]
    }
}

thread_local! {
    static CLASS: Cell<Class> = const { Cell::new(Class::Activations) };
}

/// What this thread's blocks are for, now.
pub fn class() -> Class {
    CLASS.get()
}

/// Until it is dropped, what this thread asks for is for `class`. Scopes nest.
pub fn scope(class: Class) -> Scope {
    Scope { before: CLASS.replace(class), stays: PhantomData }
}

/// Ends the scope of a class when dropped, on the thread that began it.
#[must_use = "a scope ends where it is dropped"]
#[derive(Debug)]
pub struct Scope {
    before: Class,
    /// Not to be sent to another thread, whose class it would set.
    stays: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        CLASS.set(self.before);
    }
}
