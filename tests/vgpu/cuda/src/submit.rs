//! Work goes to its stream, or into the graph that the stream records.

use crate::capturing;
use crate::channel::Point;
use crate::handle::Pinned;
use crate::objects::context::Stream;
use crate::objects::work::{Kernel, Work};
use crate::result::CudaResult;

/// Gives `work` to `stream`.
pub fn enqueue(stream: &'static Pinned<Stream>, work: Work) -> CudaResult<Option<Point>> {
    let mut work = Some(work);
    if capturing::diverted(stream, || work.take().unwrap_or(Work::Empty))? {
        return Ok(None);
    }
    work.map_or(Ok(None), |work| work.run(stream, 0))
}

/// As [`enqueue`] for a kernel, which is on the path that must be cheap.
pub fn enqueue_kernel(stream: &'static Pinned<Stream>, kernel: &Kernel) -> CudaResult {
    use crate::objects::context::Engine::Compute;
    if capturing::diverted(stream, || Work::Kernel(*kernel))? {
        return Ok(());
    }
    stream.submit(Compute, &[kernel.entry(0)]).map(|_| ())
}
