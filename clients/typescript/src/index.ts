// Client of Headwater: publish, pull and ack over HTTP.

export { Client, type ClientOptions, type PublishOptions } from "./client.js";
export { type BuryOn, type Consumer, type ConsumerOptions, type Delivery } from "./consume.js";
export { RETRY, type RetryPolicy } from "./endpoints.js";
export {
  Bury,
  Conflict,
  ConnectionFailed,
  Forbidden,
  HeadwaterError,
  InvalidAnswer,
  InvalidRequest,
  NotFound,
  Outcome,
  Problem,
  type ProblemFields,
  Release,
  Retry,
  ServerFailure,
  TooManyRequests,
  Unauthorized,
} from "./errors.js";
export type * from "./models.js";
export type { BrowseOptions, DeadLetterListOptions, GroupListOptions, ListOptions, Position } from "./operations.js";
export type { DeadLetters, Groups, Topics } from "./resources.js";
export { Worker, type WorkerOptions, type WorkerStats } from "./worker.js";
