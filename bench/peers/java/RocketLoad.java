import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's own Java client. Its last line is a JSON object.
 *
 * <p>batches NAME_SERVER TOPIC MESSAGE_BYTES WARM_S SECONDS BATCH THREADS: at full speed, so many
 * messages in a call; what is counted is acked between the two
 *
 * <p>single NAME_SERVER TOPIC MESSAGE_BYTES WARM_S SECONDS RATE: each when it is due, whatever
 * became of the ones before
 */
public final class RocketLoad {
    private static final AtomicReference<Throwable> FAILED = new AtomicReference<>();

    private RocketLoad() {}

    public static void main(String[] words) {
        int code = 0;
        try {
            System.out.println(measured(words));
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            String[] said = String.valueOf(cause).split("\n"); // its first line is to be the last
            System.err.println(String.valueOf(error.getMessage()).split("\n")[0] + ": " + said[0]);
            code = 1;
        }
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(code); // before anybody logs a line after it
    }

    private static String measured(String[] words) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("peers");
        producer.setNamesrvAddr(words[1]);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        Message message = new Message(words[2], new byte[Integer.parseInt(words[3])]);
        connect(producer, message);
        double warm = Double.parseDouble(words[4]);
        double seconds = Double.parseDouble(words[5]);
        int number = Integer.parseInt(words[6]);
        String found =
                words[0].equals("batches")
                        ? batches(producer, message, warm, seconds, number,
                                Integer.parseInt(words[7]))
                        : single(producer, message, warm, seconds, number);
        if (FAILED.get() != null) {
            throw new IllegalStateException("a message was refused", FAILED.get());
        }
        return found;
    }

    /** One message: the route is known and the connection there before many need them at once. */
    private static void connect(DefaultMQProducer producer, Message message) throws Exception {
        for (int left = 9; ; left--) {
            try {
                check(producer.send(new Message(message.getTopic(), message.getBody())));
                return;
            } catch (Exception error) {
                if (left == 0) {
                    throw error;
                }
            }
        }
    }

    private static String batches(DefaultMQProducer producer, Message message, double warm,
            double seconds, int size, int threads) throws Exception {
        LongAdder acked = new LongAdder();
        long end = System.nanoTime() + Math.round((warm + seconds) * 1e9);
        CountDownLatch done = new CountDownLatch(threads);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        for (int thread = 0; thread < threads; thread++) {
            pool.execute(
                    () -> {
                        try {
                            while (System.nanoTime() < end && FAILED.get() == null) {
                                List<Message> batch = new ArrayList<>(size);
                                for (int at = 0; at < size; at++) {
                                    batch.add(new Message(message.getTopic(), message.getBody()));
                                }
                                check(producer.send(batch));
                                acked.add(size);
                            }
                        } catch (Exception error) {
                            FAILED.compareAndSet(null, error);
                        } finally {
                            done.countDown();
                        }
                    });
        }
        Thread.sleep(Math.round(warm * 1e3));
        long before = acked.sum();
        long began = System.nanoTime();
        Thread.sleep(Math.round(seconds * 1e3));
        long counted = acked.sum() - before;
        double took = (System.nanoTime() - began) / 1e9;
        done.await();
        return String.format(Locale.ROOT, "{\"acked\": %d, \"per_s\": %d}", acked.sum(),
                Math.round(counted / took));
    }

    private static String single(DefaultMQProducer producer, Message message, double warm,
            double seconds, int rate) throws Exception {
        int acked = 0;
        String found = "";
        for (double phase : new double[] {warm, seconds}) {
            int total = (int) (rate * phase);
            long[] took = new long[total];
            AtomicInteger answers = new AtomicInteger();
            CountDownLatch done = new CountDownLatch(total);
            long begin = System.nanoTime();
            for (int number = 0; number < total; number++) {
                long due = begin + number * 1_000_000_000L / rate;
                for (long wait; (wait = due - System.nanoTime()) > 0; ) {
                    LockSupport.parkNanos(wait);
                }
                producer.send(
                        new Message(message.getTopic(), message.getBody()),
                        new SendCallback() {
                            @Override
                            public void onSuccess(SendResult result) {
                                took[answers.getAndIncrement()] = System.nanoTime() - due;
                                try {
                                    check(result);
                                } catch (IllegalStateException error) {
                                    onException(error);
                                    return;
                                }
                                done.countDown();
                            }

                            @Override
                            public void onException(Throwable error) {
                                FAILED.compareAndSet(null, error);
                                done.countDown();
                            }
                        });
            }
            if (!done.await(60, TimeUnit.SECONDS)) {
                throw new IllegalStateException(done.getCount() + " messages not answered");
            }
            double lasted = (System.nanoTime() - begin) / 1e9;
            acked += total;
            Arrays.sort(took);
            found = String.format(Locale.ROOT,
                    "{\"acked\": %d, \"held\": %d, \"p50_ms\": %.2f, \"p99_ms\": %.2f,"
                            + " \"p999_ms\": %.2f, \"max_ms\": %.2f}",
                    acked, Math.round(total / lasted), at(took, 0.5), at(took, 0.99),
                    at(took, 0.999), at(took, 1));
        }
        return found;
    }

    private static double at(long[] took, double share) {
        return took[Math.min(took.length - 1, (int) (took.length * share))] / 1e6;
    }

    /** Anything else than SEND_OK was not synced in time. */
    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.getSendStatus().toString());
        }
    }
}
