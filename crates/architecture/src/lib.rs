//! Models without tensors: the shape as a config.json has it, the rotary embedding, adapters as PEFT
//! has them, the element types.

mod config;
mod dtype;
mod elements;
mod keys;
mod later;
mod lora;
mod peft;
mod rope;
mod shape;

pub use config::{
    ADAPTED, generation_ends, has_saved_config, parse_config, read_config, read_saved_config,
    write_config,
};
pub use dtype::{Dtype, Element};
pub use elements::slice_range;
pub use keys::{MOST_LAYERS, MOST_POSITIONS, RopeKeys, ShapeKeys, TopLevelKeys, shape_of};
pub use lora::{FullyTrained, Lora, Target};
pub use peft::{ADAPTER, read_adapter, write_adapter};
pub use rope::{Frequencies, Parameters, Rope, Scaling, Yarn, ntk_theta, rope_keys_of};
pub use shape::{Family, LayerType, Shape, check_frequencies};
