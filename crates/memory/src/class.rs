//! Classes of memory: what a block is for, as the allocating thread says.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Index;

/// The class of a block: what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Weights, and f32 masters of narrower weights.
    Weights,
    /// Gradients of weights.
    Gradients,
    /// The optimizer's moments.
    Optimizer,
    /// What layers compute and keep, and its gradients: everything without another class.
    Activations,
    /// Keys, values and their gradients that are sent and received. A lent block counts for its owner.
    KeyValue,
    /// What attention needs while it runs: running states, packed operands, visibility.
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

    /// The name of the class in metrics and plans.
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

/// A number of bytes for every class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClass([u64; Class::ALL.len()]);

impl ByClass {
    /// The bytes that `of` gives for each class.
    pub fn new(of: impl FnMut(Class) -> u64) -> ByClass {
        ByClass(Class::ALL.map(of))
    }

    /// The sum over all classes.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The larger of both numbers, class by class.
    #[must_use]
    pub fn most(self, other: ByClass) -> ByClass {
        ByClass::new(|class| self[class].max(other[class]))
    }

    /// These bytes with another number for `class`.
    #[must_use]
    pub fn with(self, class: Class, bytes: u64) -> ByClass {
        ByClass::new(|one| if one == class { bytes } else { self[one] })
    }

    /// Every class's name and bytes.
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

/// The class of this thread's blocks now.
pub fn class() -> Class {
    CLASS.get()
}

/// Sets the class of what this thread allocates, until the scope is dropped. Scopes nest.
pub fn scope(class: Class) -> Scope {
    Scope { before: CLASS.replace(class), stays: PhantomData }
}

/// The scope of a class, which ends when dropped on the thread that began it.
#[must_use = "a scope ends where it is dropped"]
#[derive(Debug)]
pub struct Scope {
    before: Class,
    /// Not `Send`: on another thread it would set that thread's class.
    stays: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        CLASS.set(self.before);
    }
}
