//! What a key does to what is shown, and what it asks the agent to do.
//!
//! Whatever changes the node is asked back for: the last line says what would be done, `y` does it, and every
//! other key leaves it.

use super::model::{Action, Model};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Longest filter, bytes.
const LONGEST: usize = 64;

/// What follows from a key beside the model's change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pressed {
    /// Nothing.
    Nothing,
    /// The user has seen enough.
    Quit,
    /// The user has confirmed this.
    Do(Action),
}

/// Takes a key.
pub fn press(model: &mut Model, key: KeyEvent) -> Pressed {
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return Pressed::Quit;
    }
    model.said.clear();
    if let Some(action) = model.asking.take() {
        if key.code != KeyCode::Char('y') {
            return Pressed::Nothing;
        }
        model.said = format!("{action} ...");
        return Pressed::Do(action);
    }
    if let Some(mut typed) = model.typing.take() {
        match key.code {
            KeyCode::Enter => model.filter = typed,
            KeyCode::Esc => model.filter.clear(),
            KeyCode::Backspace => {
                typed.pop();
                model.typing = Some(typed);
            }
            KeyCode::Char(c) if typed.len() < LONGEST => {
                typed.push(c);
                model.typing = Some(typed);
            }
            _ => model.typing = Some(typed),
        }
        return Pressed::Nothing;
    }
    match key.code {
        KeyCode::Char('q') => return Pressed::Quit,
        KeyCode::Esc if !model.help => return Pressed::Quit,
        KeyCode::Char('h' | '?') => model.help = !model.help,
        KeyCode::Char('s') => model.sort = model.sort.next(),
        KeyCode::Char('/') => model.typing = Some(model.filter.clone()),
        KeyCode::Down | KeyCode::Char('j') => model.select(1),
        KeyCode::Up | KeyCode::Char('k') => model.select(-1),
        KeyCode::Char('p') => ask(model, Action::Pause),
        KeyCode::Char('r') => ask(model, Action::Resume),
        KeyCode::Char('d') => {
            let drained = model.status.as_ref().is_some_and(|status| status.drained);
            let action = if drained {
                Action::Undrain
            } else {
                Action::Drain
            };
            model.asking = Some(action);
        }
        _ => model.help = false,
    }
    Pressed::Nothing
}

/// Asks back for what is to be done to the job that is selected.
fn ask(model: &mut Model, action: fn(String) -> Action) {
    match model.selected() {
        Some(job) => model.asking = Some(action(job)),
        None => "no offline job is attached".clone_into(&mut model.said),
    }
}
