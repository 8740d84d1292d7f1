//! Requests to a helper, by the invocation that they are about. In these tests an invocation and its one sandbox have ids of
//! the same bytes.

use cyberos_proto::ids::{InvocationId, SandboxId};
use cyberos_proto::message::{Request, Signal};
use cyberos_proto::plan::SpawnPlan;

pub(crate) trait Asks {
    fn sandbox(&self) -> SandboxId;
    fn create(&self) -> Request;

    fn prepare(&self, plan: SpawnPlan) -> Request {
        Request::Prepare { sandbox: self.sandbox(), plan: Box::new(plan) }
    }

    fn go(&self) -> Request {
        Request::Go { sandbox: self.sandbox() }
    }

    fn signal(&self, signal: Signal) -> Request {
        Request::Signal { sandbox: self.sandbox(), signal }
    }

    fn release(&self) -> Request {
        Request::Release { sandbox: self.sandbox() }
    }
}

impl Asks for InvocationId {
    fn sandbox(&self) -> SandboxId {
        SandboxId::from_random(*self.as_bytes())
    }

    fn create(&self) -> Request {
        Request::CreateSocket { sandbox: self.sandbox(), invocation: *self }
    }
}
