//! What a model can do with long sequences, measured with the same ranks and strategy as in training.
//!
//! [`perplexity`] reads the same targets with more and more of what comes before them; [`conversations`] reads what an assistant says as
//! training does; [`tasks`] asks for what a made-up text says, at every depth. What is found are tables with errors, in JSON, and pictures
//! of them ([`Files`]). [`table`] says of many runs which differ by more than their seeds explain.

mod answers;
mod conversations;
mod earlier;
mod files;
mod perplexity;
mod read;
mod statistics;
mod subject;
mod table;
mod tasks;
mod texts;
mod trained;
mod windows;

pub use conversations::{ConversationLoss, ConversationScores, Conversations, conversations};
pub use earlier::kept_in;
pub use files::Files;
pub use perplexity::{Bucket, Difference, Length, Perplexity, TextLoss, perplexity};
pub use read::{Evaluated, FOLDER, RESULTS};
pub use statistics::{Mean, Rate};
pub use subject::{Progress, Subject};
pub use table::{
    ComparisonToBest, Group, OverSeeds, Row, Table, Test, groups, of_other_data, repeated, table,
};
pub use tasks::{Answer, Cell, TaskResults, tasks};
pub use texts::Reads;
pub use trained::TrainedFiles;
