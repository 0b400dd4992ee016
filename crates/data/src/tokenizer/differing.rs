//! Whether two tokenizers give the same ids to the same tokens.

use std::collections::HashSet;

use super::Tokenizer;

impl Tokenizer {
    /// The first id or token of which this one, a model's, and `other` do not say the same, in words; `None`: there is none. Tokens that only
    /// one of both has are no difference, and neither are added tokens: those that a model has in reserve are given other names.
    pub fn contradiction(&self, other: &Tokenizer) -> Option<String> {
        let (Tokenizer::Json(own), Tokenizer::Json(other)) = (self, other) else { return None };
        let (own, other) = (&own.inner, &other.inner);
        let added: HashSet<u32> = [own, other]
            .into_iter()
            .flat_map(|one| one.get_added_tokens_decoder().into_keys())
            .collect();
        let mut tokens: Vec<(String, u32)> = other.get_vocab(true).into_iter().collect();
        tokens.retain(|(_, id)| !added.contains(id));
        tokens.sort_unstable_by_key(|(_, id)| *id);
        let mut tokens = tokens.into_iter().filter(|(token, id)| {
            // Else a token of another name has taken its id.
            other.id_to_token(*id).is_some_and(|known| known == *token)
        });
        tokens.find_map(|(token, id)| {
            if let Some(own) = own.id_to_token(id).filter(|own| *own != token) {
                return Some(format!("id {id} is {own:?} in the model's, {token:?} in the other"));
            }
            let moved = own.token_to_id(&token).filter(|own| *own != id && !added.contains(own))?;
            Some(format!("{token:?} is id {moved} in the model's, {id} in the other"))
        })
    }
}
