--needs base
--exports join_job
-- Waiting for a job that another emission made: its end is told to the emitters that the job lists.
-- The list names emitters, not emissions, and is bounded, so that joins cost no memory and the end of the job no long
-- call. An emitter that finds the list full is told so; it asks for the outcome each few seconds.
local MOST = 1000

-- Returns whether the emitter will be told.
function join_job(id, emitter)
  try('HINCRBY', job_root .. id, 'joined', 1) -- how many emissions joined it, and perhaps repeats of these
  if emitter == '' then return true end -- it does not want to be
  local name = key('waiters', id)
  if (try('SCARD', name) or 0) >= MOST and (try('SMISMEMBER', name, emitter) or {})[1] ~= 1 then return false end
  return try('SADD', name, emitter) ~= nil
end
