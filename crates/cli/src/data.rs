//! `annulus data show`: what is in data, and what of it counts in the loss.

use std::path::PathBuf;
use std::sync::Arc;

use annulus_data::{
    Beginning, Cache, Chat, Longer, Packed, Packing, Records, Sequence, Source, Texts, Tokenizer,
    Window, Windows, counted, left_out, show as lines,
};
use annulus_plan::size;
use annulus_train::{Opening, open_data};

use crate::Done;
use crate::arguments::{File, Show};
use crate::check;
use crate::console::{Meter, Unit};
use crate::failure::Failure;
use crate::{hub, print};

pub(crate) fn show(arguments: &Show) -> Done {
    let ending = arguments.file.extension().and_then(|ending| ending.to_str());
    match ending {
        Some("yaml" | "yml") => experiment(arguments)?,
        Some("tokens") => {
            let tokenizer = Tokenizer::open(&hub::tokenizer(&arguments.tokenizer)?)?;
            cache(Cache::open_file(&arguments.file)?, &tokenizer, arguments.tokens)?;
        }
        _ => text(arguments)?,
    }
    Ok(0)
}

/// The batch of an experiment's first step, as it is trained on.
fn experiment(arguments: &Show) -> Result<(), Failure> {
    let Show { file, replacements, tokens, verify_cache, .. } = arguments;
    let file = File { file: file.clone(), replacements: replacements.clone() };
    let opened = check::opened(&file)?;
    let plan = opened.plans(annulus_machine::cores())?.swap_remove(0);
    let tokenizer = opened.tokenizer.as_deref();
    let meter = Meter::new(Unit::Bytes);
    let opening = Opening { tokenizer, verify: *verify_cache, ..Opening::default() };
    let data = open_data(&plan, opening, &mut |now| meter.tell(now))?;
    meter.finish();
    data.notes.iter().for_each(print::warn);
    let tokenizer = tokenizer.unwrap_or(&Tokenizer::Bytes);
    for (row, sequence) in data.train.batch(0)?.iter().enumerate() {
        let (inputs, targets) = (sequence.inputs.len(), counted(sequence));
        let documents = documents(sequence.documents.len().max(1));
        let number = row + 1;
        print::line(&format!(
            "sequence {number}: {inputs} tokens in {documents}, {targets} count in the loss"
        ))?;
        print(sequence, tokenizer, *tokens)?;
    }
    Ok(())
}

/// Bytes at the beginning of a text that are read, at least; and for every token that is shown.
const LEAST: u64 = 1 << 18;
const A_TOKEN: u64 = 64;

/// Files and folders, tokenised into a file without a name.
fn text(arguments: &Show) -> Result<(), Failure> {
    let Show { file, tokenizer, form, tokens, .. } = arguments;
    let (tokenizer, records) = (Tokenizer::open(&hub::tokenizer(tokenizer)?)?, form.records());
    if records == Records::Chats {
        let way = if Chat::open(&tokenizer)?.is_marked() {
            "its `{% generation %}`"
        } else {
            "rendering it turn by turn: it has no `{% generation %}`"
        };
        print::line(&format!("what the assistant says is told by the template: {way}"))?;
    }
    let inputs = std::slice::from_ref(file);
    let texts = Texts::new(inputs, records, &tokenizer);
    warn_of_left_out(inputs, records, &texts)?;
    if let Some(Beginning { cache: part, read, total }) =
        Beginning::of(&texts, LEAST.max(*tokens as u64 * A_TOKEN))
    {
        print::line(&format!("the first {} of {}:", size(read), size(total)))?;
        return cache(part, &tokenizer, *tokens);
    }
    let meter = Meter::new(Unit::Bytes);
    let made = Cache::temporary(&texts, &mut |now| meter.tell(now));
    meter.finish();
    cache(made?, &tokenizer, *tokens)
}

/// Warnings of folders that runs have written, among texts.
pub(crate) fn warn_of_left_out(
    inputs: &[PathBuf],
    records: Records,
    texts: &Texts<'_>,
) -> Result<(), Failure> {
    for left_out in left_out(inputs, records, texts.excluded)? {
        let left_out = left_out.display();
        print::warn(format!("`{left_out}` left out: what runs write is no text"));
    }
    Ok(())
}

/// `1 document`, `2 documents`.
pub(crate) fn documents(count: usize) -> String {
    format!("{count} document{}", if count == 1 { "" } else { "s" })
}

fn cache(cache: Cache, tokenizer: &Tokenizer, most: usize) -> Result<(), Failure> {
    let tokens = cache.tokens();
    print::line(&format!("{tokens} tokens in {}", documents(cache.documents().len())))?;
    if cache.vocabulary() > tokenizer.vocabulary() {
        let (found, wanted) = (cache.vocabulary() - 1, tokenizer.vocabulary());
        let hint = "name the tokenizer that made it: `--tokenizer FILE`".to_owned();
        let message = format!("the cache has token {found}, the tokenizer {wanted} tokens");
        return Err(Failure::new(crate::failure::DATA, message, Some(hint)));
    }
    let shown = (most as u64).min(tokens.saturating_sub(1)) as usize;
    if shown == 0 {
        return Ok(());
    }
    let cache = Arc::new(cache);
    let sequence = if cache.is_marked() {
        // The first record, whole.
        let most = tokens as usize;
        let packing = Arc::new(Packing::new(cache, most, Longer::Refuse)?);
        Packed::new(packing, Window::Train, 0, 1, 0)?.batch(0)?
    } else {
        Windows::new(cache, Window::HeldOut, tokens, shown, 1, 0)?.batch(0)?
    };
    for sequence in &sequence {
        print(sequence, tokenizer, most)?;
    }
    Ok(())
}

fn print(sequence: &Sequence, tokenizer: &Tokenizer, most: usize) -> Result<(), Failure> {
    print::line("  place   doc      id input                target in the loss")?;
    print::line(lines(sequence, tokenizer, most)?.trim_end())
}
