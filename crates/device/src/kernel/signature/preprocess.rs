//! As much of the C preprocessor as kernel sources use: comments, object-like and function-like macros, `##`.

use std::collections::HashMap;

/// A macro: its parameters if it is function-like, and its body.
struct Macro {
    params: Option<Vec<String>>,
    body: Vec<String>,
}

/// The tokens of `text` with macros expanded. An error names the directive or the macro that is beyond this.
pub(super) fn preprocess(text: &str) -> Result<Vec<String>, String> {
    // Comments are blanked and spliced lines joined first, as the standard orders.
    let text = without_comments(text).replace("\\\n", " ");
    let mut macros = HashMap::new();
    let (mut waiting, mut done) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            waiting.extend(tokens(line));
            continue;
        };
        // A macro holds from its definition on.
        done.extend(expand(&std::mem::take(&mut waiting), &macros, &[])?);
        let (name, rest) = directive.trim_start().split_once(char::is_whitespace).unwrap_or((directive, ""));
        match name {
            "define" => {
                let (name, found) = definition(rest).ok_or_else(|| format!("cannot read `{line}`"))?;
                macros.insert(name, found);
            }
            "pragma" | "line" => {}
            _ => return Err(format!("directive `{line}` is not supported")),
        }
    }
    done.extend(expand(&waiting, &macros, &[])?);
    Ok(done)
}

/// Where the parenthesis at `open` is closed.
pub(super) fn closing(tokens: &[String], open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        depth += i32::from(token == "(") - i32::from(token == ")");
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if rest.starts_with("/*") {
            rest = &rest[rest.find("*/").map_or(rest.len(), |end| end + 2)..];
            out.push(' ');
        } else {
            let length = if c == '"' { string_length(rest) } else { c.len_utf8() };
            out.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    out
}

/// Bytes of the string literal that `text` starts with.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

/// Words, string literals, `##`, and every other character that is not a space.
fn tokens(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = line.trim_start();
    while let Some(c) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match c {
            '"' => string_length(rest),
            '#' if rest.starts_with("##") => 2,
            _ if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => c.len_utf8(),
        };
        found.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    found
}

fn definition(text: &str) -> Option<(String, Macro)> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    // A function-like macro has its parenthesis right behind its name.
    if !rest.starts_with('(') {
        return Some((name.to_owned(), Macro { params: None, body: tokens(rest) }));
    }
    let (params, body) = rest[1..].split_once(')')?;
    let params = params.split(',').map(|param| param.trim().to_owned()).collect();
    Some((name.to_owned(), Macro { params: Some(params), body: tokens(body) }))
}

/// Replaces macros, except those that `within` names: a macro is not replaced in its own expansion.
fn expand(tokens: &[String], macros: &HashMap<String, Macro>, within: &[&str]) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let name = tokens[at].as_str();
        at += 1;
        let found = macros.get(name).filter(|_| !within.contains(&name));
        let body = match found {
            None => None,
            Some(Macro { params: None, body }) => Some(body.clone()),
            // Without arguments the name stands for itself.
            Some(Macro { params: Some(_), .. }) if tokens.get(at).is_none_or(|next| next != "(") => None,
            Some(Macro { params: Some(params), body }) => {
                let close = closing(tokens, at).ok_or_else(|| format!("macro {name}: no closing parenthesis"))?;
                let args = arguments(&tokens[at + 1..close]);
                if args.len() != params.len() {
                    return Err(format!("macro {name} takes {} arguments, given {}", params.len(), args.len()));
                }
                at = close + 1;
                Some(substitute(body, params, &args, |arg| expand(arg, macros, within))?)
            }
        };
        match body {
            None => out.push(name.to_owned()),
            Some(body) => out.extend(expand(&body, macros, &[within, &[name]].concat())?),
        }
    }
    Ok(out)
}

/// The arguments of a call: split at commas outside of parentheses.
fn arguments(tokens: &[String]) -> Vec<&[String]> {
    let mut depth = 0;
    let split = tokens.split(|token| {
        depth += i32::from(token == "(") - i32::from(token == ")");
        depth == 0 && token == ","
    });
    split.collect()
}

/// The body with arguments in place of parameters, and the neighbours of each `##` as one token.
fn substitute(
    body: &[String],
    params: &[String],
    args: &[&[String]],
    expanded: impl Fn(&[String]) -> Result<Vec<String>, String>,
) -> Result<Vec<String>, String> {
    let mut out: Vec<String> = Vec::new();
    let mut pastes = false;
    for (at, token) in body.iter().enumerate() {
        if token == "##" {
            pastes = true;
            continue;
        }
        let pasted = pastes || body.get(at + 1).is_some_and(|next| next == "##");
        let mut tokens = match params.iter().position(|param| param == token) {
            None => vec![token.clone()],
            Some(i) if pasted => args[i].to_vec(),
            Some(i) => expanded(args[i])?,
        };
        if std::mem::take(&mut pastes) && !tokens.is_empty() {
            let second = tokens.remove(0);
            match out.last_mut() {
                Some(first) => first.push_str(&second),
                None => out.push(second),
            }
        }
        out.extend(tokens);
    }
    Ok(out)
}
