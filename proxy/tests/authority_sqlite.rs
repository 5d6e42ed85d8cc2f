//! A lease file as the authority: how it asks its reader, and what it believes. What the file says is given by hand here.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::Heard;
use palisade::{
    authority::{Authority, Reading, SqliteAuthority, Unreadable},
    state::{Options, State},
};
use palisade_fence::Token;
use std::{
    path::Path,
    sync::{Arc, Mutex, mpsc},
};

type Says = Result<(Option<u64>, u64), String>;

struct File {
    authority: Arc<SqliteAuthority>,
    heard: Arc<Heard>,
    state: Arc<State>,
    says: Arc<Mutex<Says>>,
}

impl File {
    fn start(folder: &Path, says: Says) -> Self {
        let state = Arc::new(
            State::open(
                folder,
                Options {
                    fatal: |why| panic!("{why}"),
                },
            )
            .unwrap(),
        );
        let (heard, says) = (Arc::new(Heard::default()), Arc::new(Mutex::new(says)));
        let file = says.clone();
        let read = Box::new(move |_: &str| {
            let says = file.lock().unwrap().clone();
            says.map(|(grant, revision)| (grant.and_then(Token::new), revision))
        });
        let authority = SqliteAuthority::start(read, state.clone(), heard.clone()).unwrap();
        Self {
            authority,
            heard,
            state,
            says,
        }
    }

    fn ask(&self) -> mpsc::Receiver<Result<Reading, Unreadable>> {
        let (send, receive) = mpsc::channel();
        self.authority.read(
            &Arc::from("a"),
            Box::new(move |answer| send.send(answer).unwrap()),
        );
        receive
    }

    fn read(&self) -> Result<Reading, Unreadable> {
        self.ask().recv().unwrap()
    }
}

#[test]
fn what_the_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::start(folder.path(), Ok((None, 4)));
    assert_eq!(
        file.read(),
        Ok(Reading {
            grant: None,
            revision: 4
        })
    );
    *file.says.lock().unwrap() = Ok((Some(5), 5));
    assert_eq!(
        file.read(),
        Ok(Reading {
            grant: Token::new(5),
            revision: 5
        })
    );
    *file.says.lock().unwrap() = Err("locked".to_owned());
    assert_eq!(file.read(), Err(Unreadable::Unavailable));
    assert_eq!(file.authority.health().failure.as_deref(), Some("locked"));
    *file.says.lock().unwrap() = Ok((Some(5), 5));
    assert!(file.read().is_ok());
    assert!(file.authority.health().up);
    file.authority.stop();
    assert_eq!(file.read(), Err(Unreadable::Unavailable));
}

#[test]
fn a_replaced_file_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::start(folder.path(), Ok((Some(9), 9)));
    assert!(file.read().is_ok());
    file.state.stop_clean(Vec::new()).unwrap();
    drop(file);
    let file = File::start(folder.path(), Ok((Some(3), 3)));
    assert_eq!(file.read(), Err(Unreadable::Changed));
    assert!(
        file.authority
            .health()
            .changed
            .unwrap()
            .contains("went back")
    );
    assert_eq!(*file.heard.trusted.lock().unwrap(), [false]);
}
