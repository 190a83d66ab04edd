--needs base
--exports begin_refusing tell_refused fail_apart
-- Refusing emissions whose queue cannot be written, because somebody else's value stands in the place of its set.

-- Returns the refused jobs, id -> the key that cannot be written, and the function that refuses one: it takes back
-- what was written of it.
function begin_refusing()
  local refused = {}
  return refused, function(id, _, _, place)
    refused[id] = place
    redis.call('DEL', job_root .. id, key('body', id))
  end
end

function tell_refused(answer, index, id, place)
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = index, 'foreign', id, '', place
end

-- A job of a group that can stand nowhere: it ends as failed, and its record goes by itself after a week.
function fail_apart(id, now, queue)
  local text = cjson.encode({ type = 'StoreCorrupt', message = 'the queue ' .. queue .. ' cannot be written', attempts = 0 })
  redis.call('HSET', job_root .. id, 'state', 'failed', 'ended', whole(now))
  redis.call('SET', key('result', id), text)
  for _, kind in ipairs({ 'job', 'body', 'result' }) do redis.call('PEXPIRE', key(kind, id), 604800000) end
end
