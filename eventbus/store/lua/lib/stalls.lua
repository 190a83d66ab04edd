--needs fields holds record
--exports note_stall
-- Stalls: a worker lost a job without a word. A stall is no attempt.

-- Counts the stall, and keeps what is known of it in the job's log; returns it as text.
-- job: what `read` tells of it, with its id. What its holder still sends is refused.
function note_stall(job, hold, worker, message)
  job.stalls = (tonumber(job.stalls) or 0) + 1
  change(job.id, 'stalls', job.stalls, 'token', false, 'began', Hold.time(hold))
  local text = cjson.encode({
    type = 'StalledError', message = string.gsub(message, '#', job.stalls),
    attempts = tonumber(job.attempts) or 0, stalls = job.stalls, worker = worker,
  })
  note_error(job.id, text)
  return text
end
