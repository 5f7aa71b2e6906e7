//! Rust source taken apart just far enough: comments, tokens, and the paths that
//! the tokens spell. String and character literals are dropped.

/// A source file without its literals.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The text of each comment.
    pub(crate) comments: Vec<String>,
    /// Identifiers and single punctuation characters; `::` is one token.
    pub(crate) tokens: Vec<String>,
}

/// A path that names something: a `use`, or one written out where it is needed.
pub(crate) type NamedPath = Vec<String>;

impl Source {
    /// Takes `text` apart.
    pub(crate) fn new(text: &str) -> Source {
        let mut source = Source::default();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = if rest.starts_with("//") {
                source.take_comment(rest, rest.find('\n').unwrap_or(rest.len()))
            } else if rest.starts_with("/*") {
                source.take_comment(rest, block_comment_length(rest))
            } else if let Some(length) = literal_length(rest) {
                length
            } else if first.is_alphanumeric() || first == '_' {
                let is_word = |c: char| c.is_alphanumeric() || c == '_';
                source.take_token(rest, rest.find(|c| !is_word(c)).unwrap_or(rest.len()))
            } else if rest.starts_with("::") {
                source.take_token(rest, 2)
            } else if first.is_whitespace() {
                first.len_utf8()
            } else {
                source.take_token(rest, first.len_utf8())
            };
            rest = &rest[length..];
        }
        source
    }

    /// The tokens without the modules that only tests have.
    pub(crate) fn without_test_modules(&self) -> Vec<&str> {
        const MARK: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
        let tokens: Vec<&str> = self.tokens.iter().map(String::as_str).collect();
        let mut kept = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at..].starts_with(&MARK) {
                at += MARK.len();
                at += item_length(&tokens[at..]);
            } else {
                kept.push(tokens[at]);
                at += 1;
            }
        }
        kept
    }

    fn take_comment(&mut self, rest: &str, length: usize) -> usize {
        self.comments.push(rest[..length].to_string());
        length
    }

    fn take_token(&mut self, rest: &str, length: usize) -> usize {
        self.tokens.push(rest[..length].to_string());
        length
    }
}

/// Every path of two segments or more that `tokens` of the module `module` spell,
/// with `crate`, `self` and `super` resolved: what is ours starts with `crate`.
pub(crate) fn named_paths(module: &[&str], tokens: &[&str]) -> Vec<NamedPath> {
    let mut paths = Vec::new();
    // Inline modules we are in: name, and the depth of braces around it.
    let mut inline: Vec<(&str, usize)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        let here = || -> Vec<&str> {
            let nested = inline.iter().map(|(name, _)| *name);
            module.iter().copied().chain(nested).collect()
        };
        match token {
            "use" => {
                let end = at + position_of(";", &tokens[at..]);
                for path in use_tree(&tokens[at + 1..end]) {
                    paths.push(resolve(&here(), &path));
                }
                at = end;
            }
            "mod" if tokens.get(at + 2) == Some(&"{") => {
                inline.push((tokens[at + 1], depth));
                at += 1;
            }
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.retain(|(_, outside)| *outside < depth);
            }
            _ if is_word(token) && tokens.get(at + 1) == Some(&"::") => {
                let mut path = vec![token];
                while tokens.get(at + 1) == Some(&"::")
                    && tokens.get(at + 2).is_some_and(|next| is_word(next))
                {
                    path.push(tokens[at + 2]);
                    at += 2;
                }
                paths.push(resolve(&here(), &path));
            }
            _ => {}
        }
        at += 1;
    }
    paths
}

/// The paths of what stands between `use` and `;`.
fn use_tree<'a>(tokens: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut prefix = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => {
                let group = &tokens[at + 1..at + matching_brace(&tokens[at..])];
                return split_at_commas(group)
                    .into_iter()
                    .flat_map(use_tree)
                    .map(|path| [prefix.clone(), path].concat())
                    .collect();
            }
            "as" => break,
            word if is_word(word) || word == "*" => prefix.push(word),
            _ => {}
        }
        at += 1;
    }
    match prefix.is_empty() {
        true => Vec::new(),
        false => vec![prefix],
    }
}

fn split_at_commas<'t, 'a>(tokens: &'t [&'a str]) -> Vec<&'t [&'a str]> {
    let mut depth = 0;
    tokens
        .split(|token| {
            match *token {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            *token == "," && depth == 0
        })
        .collect()
}

fn resolve(module: &[&str], path: &[&str]) -> NamedPath {
    let mut base: Vec<&str> = Vec::new();
    let mut rest = path;
    match rest.first() {
        Some(&"crate") => {
            base.push("crate");
            rest = &rest[1..];
        }
        Some(&("self" | "super")) => {
            base.push("crate");
            base.extend(module);
            while let Some(step @ &("self" | "super")) = rest.first() {
                if *step == "super" {
                    base.pop();
                }
                rest = &rest[1..];
            }
        }
        _ => {}
    }
    base.iter()
        .chain(rest)
        .map(|it| (*it).to_string())
        .collect()
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Tokens up to and with the `;` or the closing brace of the item they start with.
fn item_length(tokens: &[&str]) -> usize {
    let brace = position_of("{", tokens);
    let semicolon = position_of(";", tokens);
    match semicolon < brace {
        true => semicolon + 1,
        false => brace + matching_brace(&tokens[brace..]) + 1,
    }
}

fn position_of(wanted: &str, tokens: &[&str]) -> usize {
    let found = tokens.iter().position(|token| *token == wanted);
    found.unwrap_or(tokens.len())
}

/// Where the brace closes that `tokens` start with.
fn matching_brace(tokens: &[&str]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

fn block_comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of the string or character literal that `text` starts with, if it does.
fn literal_length(text: &str) -> Option<usize> {
    let prefix = ["br", "b", "cr", "c", "r", ""].into_iter().find(|prefix| {
        let after = text.strip_prefix(prefix);
        let is_raw = prefix.ends_with('r');
        after.is_some_and(|after| match is_raw {
            true => after.trim_start_matches('#').starts_with('"'),
            false => after.starts_with(['"', '\'']),
        })
    })?;
    let after = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = after.len() - after.trim_start_matches('#').len();
        let end = format!("\"{}", "#".repeat(hashes));
        let body = prefix.len() + hashes + 1;
        let closing = text[body..].find(&end).map(|at| body + at + end.len());
        return Some(closing.unwrap_or(text.len()));
    }
    match after.strip_prefix('"') {
        Some(body) => Some(prefix.len() + 1 + quoted_length(body, '"')),
        None => character_length(&after[1..]).map(|length| prefix.len() + 1 + length),
    }
}

/// Length of a character literal after its opening quote; `None` for a lifetime.
fn character_length(body: &str) -> Option<usize> {
    let mut characters = body.char_indices();
    let (_, first) = characters.next()?;
    if first == '\\' {
        return Some(quoted_length(body, '\''));
    }
    let (after, quote) = characters.next()?;
    (quote == '\'').then_some(after + 1)
}

/// Length of quoted text after its opening quote, with the closing one.
fn quoted_length(body: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in body.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    body.len()
}
